# Compiler flags (interface target tpu_options), ccache, and run-time search paths.
include_guard()

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
# -O2 throughout: -O3 brings nothing to dispatch code and compiles slower. Assertions stay on only in Debug.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g")

if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(CCACHE ccache)
  if(CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${CCACHE}")
  endif()
endif()

add_library(tpu_options INTERFACE)
target_compile_options(tpu_options INTERFACE -Wall -Wextra -fno-semantic-interposition)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_compile_options(tpu_options INTERFACE -Wthread-safety)
endif()
if(TPU_WERROR)
  target_compile_options(tpu_options INTERFACE -Werror)
endif()

if(TPU_SANITIZE)
  target_compile_options(tpu_options INTERFACE -fsanitize=${TPU_SANITIZE} -fno-omit-frame-pointer -g)
  target_link_options(tpu_options INTERFACE -fsanitize=${TPU_SANITIZE})
endif()

# Libraries lie side by side in the package torch_tpu, which is a neighbour of torch in site-packages. A developer
# build adds the absolute path of torch's libraries, since its package lies in the source tree.
function(tpu_set_rpath target)
  set_target_properties(${target} PROPERTIES
    BUILD_RPATH "$ORIGIN;${TORCH_LIB_DIR}"
    INSTALL_RPATH "$ORIGIN:$ORIGIN/../torch/lib")
  # A forgotten source file should fail here, not at import; sanitizer runtimes leave symbols open on purpose.
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "SHARED_LIBRARY" AND NOT TPU_SANITIZE AND NOT APPLE)
    target_link_options(${target} PRIVATE -Wl,--no-undefined)
  endif()
endfunction()
