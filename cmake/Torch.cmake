# Finds torch beside the interpreter without importing it: find_package(Torch) takes seconds and wants MKL and CUDA.
# Defines tpu_libtorch (headers, libtorch) and tpu_libtorch_python (adds libtorch_python).
include_guard()

execute_process(
  COMMAND "${Python_EXECUTABLE}" -c
    "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
  OUTPUT_VARIABLE TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
if(NOT EXISTS "${TORCH_DIR}/include/torch/library.h")
  message(FATAL_ERROR
    "torch is not installed for ${Python_EXECUTABLE}. Install it (pip install 'torch>=2.11,<2.16') and build without "
    "isolation (pip install --no-build-isolation), or set -DTPU_WITH_TORCH=OFF for the core library alone.")
endif()
set(TORCH_LIB_DIR "${TORCH_DIR}/lib")
# torch/version.py is plain assignments; the version goes into the build, since libraries fit one minor release only.
file(STRINGS "${TORCH_DIR}/version.py" version_line REGEX "^__version__ = ")
string(REGEX REPLACE ".*'(.*)'.*" "\\1" TORCH_VERSION "${version_line}")
message(STATUS "torch ${TORCH_VERSION}: ${TORCH_DIR}")

find_library(TORCH_PYTHON_LIBRARY torch_python PATHS "${TORCH_LIB_DIR}" NO_DEFAULT_PATH REQUIRED)
find_library(TORCH_LIBRARY torch PATHS "${TORCH_LIB_DIR}" NO_DEFAULT_PATH REQUIRED)
find_library(TORCH_CPU_LIBRARY torch_cpu PATHS "${TORCH_LIB_DIR}" NO_DEFAULT_PATH REQUIRED)
find_library(C10_LIBRARY c10 PATHS "${TORCH_LIB_DIR}" NO_DEFAULT_PATH REQUIRED)

add_library(tpu_libtorch INTERFACE)
target_include_directories(tpu_libtorch SYSTEM INTERFACE
  "${TORCH_DIR}/include" "${TORCH_DIR}/include/torch/csrc/api/include" "${TORCH_DIR}/include/kineto")
# Wheels of torch are built with Kineto, and its headers hide declarations without this. USE_DISTRIBUTED and
# USE_C10D_GLOO do the same for c10d.
target_compile_definitions(tpu_libtorch INTERFACE USE_KINETO USE_DISTRIBUTED USE_C10D_GLOO)
target_link_libraries(tpu_libtorch INTERFACE "${TORCH_LIBRARY}" "${TORCH_CPU_LIBRARY}" "${C10_LIBRARY}")

add_library(tpu_libtorch_python INTERFACE)
target_link_libraries(tpu_libtorch_python INTERFACE tpu_libtorch "${TORCH_PYTHON_LIBRARY}" Python::Module)
