# C++ tests: every tests/cpp/**/*_test.cpp in one GoogleTest program, and the library tests/fake_pjrt (a tiny PJRT
# plugin that misbehaves on demand), whose path the tests get as TPU_FAKE_PJRT.
include_guard()

find_package(GTest)
if(NOT GTest_FOUND)
  message(FATAL_ERROR "GoogleTest is missing. On Debian or Ubuntu: apt-get install libgtest-dev")
endif()
include(GoogleTest)

file(GLOB fake_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/fake_pjrt/*.cpp")
file(GLOB_RECURSE test_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/cpp/*.cpp")

if(test_sources)
  add_executable(tpu_core_tests ${test_sources})
  target_link_libraries(tpu_core_tests PRIVATE tpu_options tpu_core GTest::gtest GTest::gtest_main)
  target_include_directories(tpu_core_tests PRIVATE "${CMAKE_SOURCE_DIR}/tests/cpp")
  if(fake_sources)
    add_library(fake_pjrt MODULE ${fake_sources})
    target_link_libraries(fake_pjrt PRIVATE tpu_options)
    target_include_directories(fake_pjrt PRIVATE "${CMAKE_SOURCE_DIR}/csrc" "${TPU_GENERATED_DIR}")
    set_target_properties(fake_pjrt PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
    add_dependencies(fake_pjrt tpu_pjrt_header)
    add_dependencies(tpu_core_tests fake_pjrt)
    target_compile_definitions(tpu_core_tests PRIVATE "TPU_FAKE_PJRT=\"$<TARGET_FILE:fake_pjrt>\"")
  endif()
  gtest_discover_tests(tpu_core_tests DISCOVERY_MODE PRE_TEST)
endif()
