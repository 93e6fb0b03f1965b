# Generates pjrt/c_api.h from the ABI tables of the PyPI package pypjrt.
include_guard()

set(TPU_GENERATED_DIR "${CMAKE_BINARY_DIR}/generated")
set(header "${TPU_GENERATED_DIR}/pjrt/c_api.h")
set(generator "${CMAKE_SOURCE_DIR}/tools/generate_pjrt_header.py")
file(MAKE_DIRECTORY "${TPU_GENERATED_DIR}/pjrt")
add_custom_command(
  OUTPUT "${header}"
  COMMAND "${Python_EXECUTABLE}" "${generator}" --output "${header}"
  DEPENDS "${generator}"
  COMMENT "Generating pjrt/c_api.h"
  VERBATIM)
add_custom_target(tpu_pjrt_header DEPENDS "${header}")
