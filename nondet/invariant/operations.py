"""Seeing the operations of a model one by one, composite ones taken apart."""

from __future__ import annotations

from typing import Any

from torch._C import _dispatch_has_kernel_for_dispatch_key
from torch.utils._python_dispatch import TorchDispatchMode


class BaseOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that hands every basic operation to ``base``.

    Under inference_mode the dispatcher shows a mode composite operations such as aten::linear
    whole; they are taken apart here, so that a pass looks the same with and without it.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:  # fmt: skip
        kwargs = kwargs or {}
        if _dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return self.base(func, args, kwargs)

    def base(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one basic operation; subclasses look at its inputs and results."""
        return func(*args, **kwargs)


def operation_name(func: Any) -> str:
    """``aten::mm``, ``aten::mean.dim``: the name as in torch's operator list."""
    return str(func.name()).removesuffix(".default")
