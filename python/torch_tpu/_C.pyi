"""Bindings of the engine, implemented in csrc/python.

Rules for every function here: loading the module starts no client; functions marked "starts the client" do, and
raise RuntimeError with the plugin's text and what to install when that fails, also in a forked child whose parent
had started one; none holds the GIL while it blocks. Device arguments are indices, already checked to be
non-negative by the caller; an index beyond the last device raises RuntimeError.
"""

from typing import final

import torch

# -- life cycle ------------------------------------------------------------------------------------------------------

def set_plugin_search_path(directories: list[str]) -> None:
    """Folders with installed packages (runtime::set_plugin_search_path), called once at load."""

def choose_plugin() -> tuple[str, str, str]:
    """(provider, path, reason) of the plugin that would be used. Loads nothing. RuntimeError says what to install."""

def init() -> None:
    """Starts the client. Does nothing when it is running already."""

def is_available() -> bool:
    """Whether the client runs, or choose_plugin finds a plugin (torch.accelerator.is_available() asks the same). False
    in a bad fork. Does not start the client, never raises."""

def is_initialized() -> bool:
    """Whether this process has started a client. Never starts one."""

def after_fork_in_child() -> None:
    """Marks the process as a forked child (called by os.register_at_fork): if the parent had a client, every later
    use of the device raises RuntimeError."""

def is_in_bad_fork() -> bool:
    """Whether this is a forked child of a process that had started a client."""

def drain(timeout_seconds: float) -> bool:
    """Waits until nothing compiles or runs on any device, at most so long (called at exit); False on time-out. From
    then on late errors of the device name no lines. Where something still runs when Python has ended, the process ends
    without the destructors of libraries."""

# -- devices ---------------------------------------------------------------------------------------------------------

@final
class DeviceProperties:
    """What is known of one device. `total_memory` is in bytes: the device's own figure, or the host's for the CPU
    plugin."""

    @property
    def name(self) -> str:
        """The device's kind as people write it: "TPU v5e", "XLA CPU"."""
    @property
    def platform(self) -> str: ...
    @property
    def id(self) -> int: ...
    @property
    def local_hardware_id(self) -> int: ...
    @property
    def total_memory(self) -> int: ...
    @property
    def attributes(self) -> dict[str, str]: ...

def device_count() -> int:
    """Number of addressable devices. Starts the client."""

def current_device() -> int: ...
def set_device(device: int) -> None: ...
def exchange_device(device: int) -> int:
    """Makes `device` current and returns the one that was; a negative index does nothing and returns -1."""

def maybe_exchange_device(device: int) -> int:
    """exchange_device, except that it need not create a context on the device."""

def synchronize(device: int) -> None:
    """Flushes and waits for everything queued on the device, on all of its streams, and raises the first error."""

def device_properties(device: int) -> DeviceProperties:
    """Starts the client."""

def client_info() -> dict[str, str]:
    """Text facts of the running client, empty when there is none: provider, plugin_path, pjrt_api_version,
    platform_name, platform_version, and the plugin's attributes (stablehlo_current_version, …)."""

# -- random numbers --------------------------------------------------------------------------------------------------

def default_generator(device: int) -> torch.Generator:
    """The device's default generator, the same object's state each time. Does not start the client."""

def manual_seed_all(seed: int) -> None:
    """Seeds the default generators of all devices, also of those that are not known yet: torch.manual_seed calls it
    long before a client is wanted. Does not start the client."""

# -- execution modes and counters --------------------------------------------------------------------------------------

def eager_mode() -> str:
    """One of "debug", "strict", "fused"."""

def set_eager_mode(mode: str) -> None:
    """Flushes what is recorded, then switches. ValueError for an unknown mode."""

def host_fallbacks() -> dict[str, int]:
    """Operators that ran on the host so far ("aten::name.overload") and how often."""

def reset_host_fallbacks() -> None: ...
def host_fallback_mode() -> str:
    """One of "warn", "error", "silent"."""

def set_host_fallback_mode(mode: str) -> None:
    """ValueError for an unknown mode."""

def compile_stats() -> dict[str, float]:
    """Counters since the process started or the last reset: compiles, compile_seconds, memory_hits, disk_hits,
    failed (compiles), programs (now in memory), executions, nodes (operators recorded), waits (for a value of the
    device). The last three count from the start always."""

def compile_guard() -> str:
    """What happens where a program is needed that is not in memory: "allow", "log" or "error"."""

def set_compile_guard(guard: str) -> None: ...
def bounded_sizes() -> str:
    """How tensors of changing sizes are treated: "off", "auto" or "always"."""

def set_bounded_sizes(setting: str) -> None: ...
def stored_sizes(tensor: torch.Tensor) -> list[int]:
    """Sizes, in the order of memory, of the array that holds a tensor's storage."""

def compile_events() -> list[dict[str, object]]:
    """The last programs that were not in memory, oldest first: operators, location (file:line), reason, source
    ("compiled" or "disk"), seconds."""

def _donation_stats() -> dict[str, int]:
    """donated: inputs whose memory an in-place call took over; donatable: those where the program allows it."""

def reset_compile_stats() -> None: ...
def clear_compile_cache(disk: bool) -> None:
    """Drops compiled programs kept in memory, and with `disk` those on disk too."""

def cache_dir() -> str:
    """Folder of the disk cache, "" when it is off. Does not start the client."""

def cache_entries() -> list[str]:
    """Names of the entries of the disk cache that this process read or wrote, without the ending of their files."""

def debug_level() -> int: ...
def set_debug_level(level: int) -> None:
    """0 to 5, see docs/environment.md."""

# -- compiling for hardware that is not there ------------------------------------------------------------------------

@final
class Topology:
    """Devices of a kind that a plugin can compile for without having them. Starts no client; the engine may run on
    another plugin in the same process. Constructing one sets the environment variables that the plugin needs."""

    def __init__(self, provider: str, name: str) -> None:
        """`provider` as in TORCH_TPU_PJRT_PLUGIN, paths excepted; `name` is the plugin's, such as "v5e:2x2".
        RuntimeError says what to install, or why the plugin does not know the name."""
    @property
    def platform(self) -> str:
        """The plugin's name of its platform: "tpu"."""
    @property
    def device_kind(self) -> str:
        """The plugin's name of one device: "TPU v5 lite"."""
    @property
    def device_attributes(self) -> dict[str, str]:
        """What the plugin says of one device; "device_memory_bytes_limit" of TPUs."""
    @property
    def device_count(self) -> int: ...
    @property
    def environment(self) -> str:
        """What an executable for it depends on besides the program (csrc/runtime/executable_file.h)."""
    def compile(self, text: str) -> CompiledProgram:
        """Compiles a StableHLO module with the options the engine uses on that platform.
        RuntimeError, or NotImplementedError, with the compiler's text if the program is refused."""

@final
class CompiledProgram:
    """An executable that no client has loaded."""

    def memory(self) -> dict[str, int]:
        """Bytes on one device: arguments, outputs, aliased (counted in both), temporaries, code; peak, 0 if unknown."""
    def cost(self) -> dict[str, float]:
        """XLA's cost analysis: flops, bytes accessed, ..."""
    def optimized(self) -> tuple[str, bytes]:
        """The program after optimisation and its format: "hlo_with_config", an HloModuleProtoWithConfig."""
    def serialize(self) -> bytes:
        """What a client on such a device loads."""

# -- facts of the build ------------------------------------------------------------------------------------------------

def operators() -> list[str]:
    """Names of all rows of the lowering table, without "aten::"."""

def build_info() -> dict[str, str]:
    """torch_version (that of the headers), compiler, sanitizers."""

def neuron_refusals(program: str) -> list[str]:
    """Why the Neuron compiler would not take a StableHLO program of ours, see csrc/stablehlo/neuron_limits.h."""

# -- captured graphs, see csrc/graph/capture.h -------------------------------------------------------------------------

class CapturedCall:
    """A captured graph."""

    def __call__(self, arguments: list[torch.Tensor]) -> list[torch.Tensor]:
        """Launches it. Tensors must be as those that it was captured with: TypeError or RuntimeError otherwise."""
    def text(self, platform: str, locations: bool = False) -> str:
        """The program as StableHLO for a platform named as PJRT does, "tpu" or "cpu": a parameter for each of
        `parameters`, then seeds and offsets of random operators (int64) if there are any; results, arguments that the
        graph wrote to, then flags of checks (bool) if there are any. `locations`: operations carry the user's lines."""
    def program(self, platform: str, locations: bool = False) -> tuple[str, list[tuple[str, str, str]]]:
        """The text, and for each flag of a check the name of the exception that it stands for, the operator and the
        message."""
    @property
    def parameters(self) -> list[int]:
        """Numbers of arguments, or -1 for the next of `constants`."""
    @property
    def constants(self) -> list[torch.Tensor]:
        """Tensors from outside that are no arguments."""
    @property
    def random_blocks(self) -> list[int]:
        """Per random operator, by how much a call moves the generator's offset."""
    @property
    def results(self) -> list[int]:
        """Per result, which output of the program it is; -1 for one that the program does not make."""
    @property
    def written(self) -> list[int]:
        """Numbers of the arguments that the graph writes to: their new values are the outputs after the results."""

def load_program(
    name: str,
    text: str,
    parameters: list[tuple[list[int], torch.dtype]],
    results: list[tuple[list[int], torch.dtype]],
    written: list[int],
    random_blocks: list[int],
    checks: list[tuple[str, str, str]],
    device: int,
    executable_file: str = "",
) -> CapturedCall:
    """A call of a program that was captured earlier (csrc/compile/loaded_program.h): sizes and dtypes of its parameters
    and results, which are dense and row-major, and the rest as CapturedCall has it. Starts the client and the compile,
    or loads the executable if the file has one for this program and device; an error of the compiler is raised where a
    result is read."""

def compile_executable(text: str) -> tuple[str, bytes]:
    """What the device's compiler makes of a StableHLO module, and the environment it is for. RuntimeError with the
    compiler's text where it refuses the program or cannot write what it made."""

def write_executable(path: str, environment: str, text: str, executable: bytes) -> None:
    """Writes an executable of a StableHLO module to a file for load_program()."""

def bound_of(size: int) -> int:
    """What a dim that changes is stored in: the next power of two, at least 16. 0 and 1 are kept."""

class GraphCapture:
    """While open, operators of this thread are set aside instead of launched."""

    def __init__(self, device: int, fixed_sizes: bool = False) -> None:
        """`fixed_sizes`: the program's parameters and results have just the sizes of the tensors (CapturedCall.text
        wants that)."""
    def set_sizes(self, sizes_and_bounds: list[tuple[int, int]]) -> None:
        """Says before the arguments which sizes change, and how long the arrays are that such dims are stored in."""

    def argument(self, like: torch.Tensor, changing: int = 0) -> torch.Tensor:
        """A tensor without contents that stands for the next argument, of the sizes, strides and dtype of `like`.

        `changing` has a bit per dim whose size is another in other captures of the same graph.
        """

    def finish(self, results: list[torch.Tensor], again: bool = False) -> CapturedCall:
        """The graph that gives `results`; with `again` the one of the same nodes that was captured before, if any."""

    def close(self) -> None:
        """Ends the capture. What it made and is no result of a graph can never be read."""

    @property
    def blocked(self) -> str:
        """Why something that was called could not be captured; empty while all could."""

def branch(
    predicate: torch.Tensor, on_true: CapturedCall, on_false: CapturedCall, operands: list[torch.Tensor]
) -> list[torch.Tensor]:
    """One node: the results of `on_true` where `predicate` (0-d bool) holds, else those of `on_false`, which are alike.

    These calls (csrc/compile/control_flow.h) take captured functions that write to no argument, make all of their
    results, dense and in memory of their own, and draw no random numbers, unless in a scan."""

def while_loop(
    condition: CapturedCall, body: CapturedCall, carried: list[torch.Tensor], others: list[torch.Tensor]
) -> list[torch.Tensor]:
    """One node: what `body` has made of the carried tensors when `condition` of them, a 0-d bool, is false."""

def scan(
    name: str,
    body: CapturedCall,
    carried: list[torch.Tensor],
    sliced: list[torch.Tensor],
    others: list[torch.Tensor],
) -> list[torch.Tensor]:
    """One node: `body` for each slice of `sliced` along dim 0. It takes and gives the carried tensors first; the others
    of its results, one for each slice, are along dim 0 of the results."""

def refuse_capture(reason: str) -> None:
    """RuntimeError where this thread captures: what was called cannot be captured."""

# -- captures of tensors where they lie, see csrc/graph/slot_capture.h -------------------------------------------------

def capturing() -> str | None:
    """What captures the operators of this thread: "call" (GraphCapture), "step", "replay", or None."""

@final
class StepCapture:
    """While open, operators of this thread are set aside instead of launched. Dropped without launch(), they were not
    called. RuntimeError where this thread captures already."""

    def __init__(self, device: int, origin: int) -> None:
        """`origin`: a number for what is captured, the same in each capture of it, or 0."""

    def launch(self, lasting: list[torch.Tensor]) -> None:
        """Ends the capture and launches it as one program. `lasting`: tensors that it made, and that the next
        capture of the same step will find and write again."""

    def text(self, locations: bool = False) -> str:
        """The program that was launched, as StableHLO; "" where there was nothing to do."""

@final
class ReplayGraph:
    """What torch.accelerator.Graph is made of: capture on the current device, then any number of replays."""

    def __init__(self) -> None: ...
    def capture_begin(self) -> None:
        """RuntimeError where this thread captures already, or this holds a graph."""

    def capture_end(self) -> None:
        """RuntimeError where something that was called cannot be captured; then there is no graph."""

    def replay(self) -> None: ...
    def reset(self) -> None: ...
    def text(self, locations: bool = False) -> str:
        """As StepCapture.text."""
    @property
    def captured(self) -> bool: ...

# -- decompositions, see csrc/aten/tape.h ------------------------------------------------------------------------------

class Tape:
    """Tapes one run of a decomposition."""

    def step(
        self, name: str, overload: str, args: tuple[object, ...], kwargs: dict[str, object], result: object
    ) -> None:
        """A call that the decomposition made and what it returned."""

    def give_up(self) -> None:
        """The run did what a tape cannot hold."""

def tape_stats() -> dict[str, int]:
    """tapes: signatures of decomposed operators that were taped; replays: calls that ran from a tape."""

# Streams, events, memory statistics and generator state have no binding here: torch.Stream, torch.Event,
# torch.accelerator and torch.Generator reach the guard, the allocator and the generator by themselves. Stream id 0 is
# a device's default stream.
