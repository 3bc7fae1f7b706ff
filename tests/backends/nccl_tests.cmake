# The nccl backend runs on the tests' device and this NCCL, which it loads by its file.
find_package(NCCL REQUIRED)
add_library(tutti_fake_nccl SHARED fake_nccl/calls.cc fake_nccl/functions.cc
  fake_nccl/notes.cc fake_nccl/world.cc)
target_link_libraries(tutti_fake_nccl PRIVATE tutti fmt::fmt NCCL::headers)
target_include_directories(tutti_fake_nccl PRIVATE ${PROJECT_SOURCE_DIR})
tutti_options(tutti_fake_nccl)
tutti_runs_once(tutti_fake_nccl)
tutti_together(tutti_fake_nccl)

function(tutti_nccl_test name)
  tutti_test(${name} ${ARGN} LIBRARIES tutti_fake_device tutti_fake_nccl tutti_test_support
    LABELS thorough TIMEOUT 120)
  add_dependencies(${name} tutti_backend_nccl)
  target_compile_definitions(${name} PRIVATE TUTTI_FAKE_NCCL="$<TARGET_FILE:tutti_fake_nccl>")
endfunction()

tutti_nccl_test(nccl_backend_test nccl_backend_test.cc on_device.cc)
target_link_libraries(nccl_backend_test PRIVATE tutti_backend_conformance)
tutti_nccl_test(nccl_communicator_test nccl_communicator_test.cc)
tutti_nccl_test(nccl_split_test nccl_split_test.cc)
tutti_nccl_test(nccl_levels_test nccl_levels_test.cc on_device.cc)
target_link_libraries(nccl_levels_test PRIVATE tutti_backend_conformance)
add_dependencies(nccl_levels_test tutti_backend_plugins)
# The API suite's cases on memory of the tests' device.
file(GLOB cases CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/api/*_cases.cc)
add_library(tutti_nccl_api_cases OBJECT nccl_api_cases.cc ${PROJECT_SOURCE_DIR}/tests/api/case.cc
  ${cases})
target_link_libraries(tutti_nccl_api_cases PUBLIC tutti_fake_device tutti_test_support GTest::gmock)
target_compile_options(tutti_nccl_api_cases PUBLIC
  "SHELL:-include ${PROJECT_SOURCE_DIR}/tests/api/on_device_communicator.h")
tutti_options(tutti_nccl_api_cases)
tutti_runs_once(tutti_nccl_api_cases)
tutti_together(tutti_nccl_api_cases)
foreach(name nccl_api_test nccl_api_processes_test)
  tutti_nccl_test(${name} ${name}.cc)
  target_link_libraries(${name} PRIVATE tutti_nccl_api_cases)
endforeach()
add_dependencies(nccl_api_processes_test tutti_backend_plugins)

# On a GPU with the real libraries; elsewhere each skips and says why.
tutti_test(nccl_gpu_test nccl_gpu_test.cc LIBRARIES tutti_test_support TIMEOUT 180)
add_dependencies(nccl_gpu_test tutti_backend_nccl)
