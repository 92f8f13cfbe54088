"""Take the model away: train, write one file, load it elsewhere and classify an image.

The image is a 0, and is taken for one in both scenarios.
"""

from torch.optim import SGD

from avalanche_dlcpa import DLCPAStrategy, PaperViews, load_stable, seed_everything
from avalanche_dlcpa.backbones import resnet18
from avalanche_dlcpa.streams import split_digits

seed_everything(0)
benchmark = split_digits(5)
model = resnet18(num_classes=10, in_channels=1, width=8)
strategy = DLCPAStrategy(
    model=model,
    optimizer=SGD(model.parameters(), lr=0.01),
    views=PaperViews(min_crop_area=0.75),
    train_mb_size=32,
    train_epochs=8,
    evaluator=None,
)
strategy.train(benchmark.train_stream[:2])
names = [f"digit {name}" for name in benchmark.class_names]
strategy.model.export("digits.safetensors", class_names=names, image_shape=(1, 8, 8))

# Elsewhere, with nothing but that file and the network's own code:

image, label = split_digits(5).test_stream[0].dataset[0][:2]
network, info = load_stable("digits.safetensors", resnet18(in_channels=1, width=8))
logits = network(image.unsqueeze(0))
columns = info.columns(task=0)
print(f"An image of a {label}, classified among {', '.join(info.names)}:")
print("Class-IL:", info.names[logits.argmax()])
print("Task-IL, among the classes of its task:", info.names[columns[logits[:, columns].argmax()]])
