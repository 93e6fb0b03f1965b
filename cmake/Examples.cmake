# C++ examples: programs that use tpu_core alone, without torch and Python.
include_guard()

find_package(nlohmann_json)
if(NOT nlohmann_json_FOUND)
  message(FATAL_ERROR "nlohmann-json is missing. On Debian or Ubuntu: apt-get install nlohmann-json3-dev")
endif()

add_executable(export_run examples/export/run.cpp examples/export/tensor_file.cpp)
target_link_libraries(export_run PRIVATE tpu_options tpu_core nlohmann_json::nlohmann_json)
set_target_properties(export_run PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/examples")
