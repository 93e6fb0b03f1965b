"""The second face of the engine, device ``"neuron"``: not there yet, and said so at once."""


class NotSupportedError(ImportError, RuntimeError):
    """Also a RuntimeError: libraries that look whether Neuron is usable import this package and expect one."""


raise NotSupportedError(
    "torch_neuronx: device 'neuron' is not supported yet. Use device 'tpu' of the package torch_tpu, which runs on any "
    "PJRT plugin (set TORCH_DEVICE=tpu)."
)
