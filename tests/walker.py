"""Everything reachable from an object, and whether it holds samples or features that we know."""

import gc
import sys
import types

import numpy as np
import torch

_SKIPPED = (types.ModuleType, type, types.FrameType, str, bytes, int, float, complex, bool)


def reachable(*roots):
    """All objects that can be reached from the roots, each once.

    Follows attributes, containers, closures, defaults, bound objects and generators (as the garbage
    collector does), gradients and what autograd's graph has saved. Does not follow classes, modules
    and the globals of functions, which are those of the program and not of the object.
    """
    seen = {}  # keeps objects alive, so that no id is used twice
    stack = list(roots)
    while stack:
        node = stack.pop()
        if id(node) in seen or isinstance(node, _SKIPPED):
            continue
        seen[id(node)] = node
        stack.extend(_inside(node))
    return list(seen.values())


def _inside(node):
    if isinstance(node, types.FunctionType):
        cells = [cell.cell_contents for cell in node.__closure__ or () if cell != types.CellType()]
        return [*cells, node.__defaults__, node.__kwdefaults__, node.__dict__]
    if isinstance(node, types.GeneratorType):
        return list(node.gi_frame.f_locals.values()) if node.gi_frame else []
    found = gc.get_referents(node)
    if isinstance(node, torch.Tensor):
        found += [node.grad if node.is_leaf else None, node.grad_fn, node._base]
    elif hasattr(node, "next_functions"):  # a node of autograd's graph
        found += [function for function, _ in node.next_functions]
        saved = [name for name in dir(node) if name.startswith("_saved_")]
        found += [_saved(node, name) for name in [*saved, "saved_tensors", "variable"]]
    return found


def _saved(node, name):
    try:
        return getattr(node, name, None)
    except RuntimeError:  # freed by the backward pass
        return None


def package_globals(name):
    """Module-level objects of a package: caches and the like."""
    modules = [m for key, m in list(sys.modules.items()) if key.split(".")[0] == name]
    return [value for module in modules for value in vars(module).values()]


def tensors_in(objects):
    """The tensors and arrays among them, as whole storages, by storage."""
    storages = {}
    for node in objects:
        if isinstance(node, np.ndarray) and node.dtype.kind in "fiu":
            node = torch.from_numpy(np.ascontiguousarray(node).copy())
        if isinstance(node, torch.Tensor) and node.numel():
            flat = torch.empty(0, dtype=node.dtype)
            flat.set_(node.detach().untyped_storage())
            storages[node.untyped_storage().data_ptr()] = (node, flat)
    return list(storages.values())


def holding(objects, vectors, *, share=0.5):
    """Those tensors that hold (a share of) the values of some known vector, in any layout.

    Args:
        objects: From `reachable`.
        vectors: Samples, features, ... as rows (N, L); float32.
        share: Of a vector's values other than 0 and 1 that must be there, bit for bit.
    """
    telling = (vectors != 0) & (vectors != 1)
    wanted = telling.sum(dim=1).clamp(min=1)
    leaks = []
    for tensor, flat in tensors_in(objects):
        if flat.is_floating_point():
            found = torch.isin(vectors, flat.float()) & telling
            if (found.sum(dim=1) / wanted >= share).any():
                leaks.append(tensor)
    return leaks


def shaped_like(objects, shape):
    """Those tensors that are a sample of this shape or a batch of them."""
    tensors = [node for node in objects if isinstance(node, torch.Tensor)]
    return [t for t in tensors if t.ndim >= len(shape) and t.shape[-len(shape) :] == shape]
