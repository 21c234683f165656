# Tests. tests/**/*_test.cc become hocket_tests, tests/**/*_test.py run under the .venv (those that
# compare with PyTorch import it there). One ctest entry per file, labelled with its folder; a line
# `// ctest: serial` or `// ctest: timeout=900` in a file sets the property of its entry. What has no
# line `// ctest: slow` (more than 1.5 s) is labelled `unit` as well: all of that together takes about
# a minute on two cores. Python tests with `# ctest: slow, without sanitizers` are left out there:
# they run the program for minutes, through code that the others run too. An entry whose tests were
# all skipped shows as Skipped (exit code 77).
enable_testing()
find_package(GTest REQUIRED)
find_package(Python3 REQUIRED COMPONENTS Interpreter)
# Ranks that a launcher starts are Gloo's on every machine: those of NCCL are tests that look for GPUs themselves.
set(hocket_test_env HOCKET_SOURCE_DIR=${CMAKE_SOURCE_DIR} HOCKET_BINARY_DIR=${CMAKE_BINARY_DIR}
  CUDA_VISIBLE_DEVICES=)
set(hocket_python ${CMAKE_SOURCE_DIR}/.venv/bin/python)
if(NOT EXISTS ${hocket_python})
  set(hocket_python ${Python3_EXECUTABLE})
endif()

function(hocket_test_entry file)
  file(RELATIVE_PATH rel ${CMAKE_SOURCE_DIR}/tests ${file})
  cmake_path(REMOVE_EXTENSION rel OUTPUT_VARIABLE name)
  get_filename_component(label ${rel} DIRECTORY)
  add_test(NAME ${name} COMMAND ${ARGN} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set(labels ${label} unit)
  set(timeout 300)
  set(cost 0)
  file(STRINGS ${file} settings REGEX "^(//|#) ctest: ")
  foreach(setting ${settings})
    if(setting MATCHES "ctest: serial")
      set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
    elseif(setting MATCHES "ctest: timeout=([0-9]+)")
      set(timeout ${CMAKE_MATCH_1})
    elseif(setting MATCHES "ctest: slow")
      list(REMOVE_ITEM labels unit)
      set(cost 1)
    else()
      message(FATAL_ERROR "${file}: unknown setting '${setting}'")
    endif()
  endforeach()
  if(HOCKET_SANITIZE)
    math(EXPR timeout "${timeout} * 3")  # and on any machine: these run several times as long
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" ENVIRONMENT "${hocket_test_env}"
    TIMEOUT ${timeout} SKIP_RETURN_CODE 77 COST ${cost})
endfunction()

file(GLOB_RECURSE cc_tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/*_test.cc)
file(GLOB_RECURSE helpers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/*_util.cc ${CMAKE_SOURCE_DIR}/tests/*_cases.cc)
set(HOCKET_TEST_FILES "" CACHE STRING
  "Regular expression of the C++ test files to build, e.g. 'tests/(check|program)/'; empty: all")
if(HOCKET_TEST_FILES)
  list(FILTER cc_tests INCLUDE REGEX "${HOCKET_TEST_FILES}")
endif()
if(HOCKET_ONLY)
  # Helpers beside the folders serve all folders.
  list(FILTER helpers INCLUDE REGEX "${HOCKET_TEST_FILES}|/tests/[a-z_]+_util[.]cc$")
endif()
if(cc_tests)
  add_subdirectory(tests)
  # They come last: of a template that both compiled the linker takes what came first.
  hocket_executable(hocket_tests)
  target_link_libraries(hocket_tests PRIVATE hocket_test_files GTest::gtest_main)
  set_target_properties(hocket_tests PROPERTIES LINKER_LANGUAGE CXX)
  foreach(file ${cc_tests})
    hocket_test_entry(${file} ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tools/gtest_file.py
      $<TARGET_FILE:hocket_tests> ${file})
  endforeach()
endif()
# The tests of kernels and ops alone, with few objects: what tools/aarch64.sh builds.
if(TARGET hocket_kernels)
  file(GLOB kernel_tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/kernels/*.cc ${CMAKE_SOURCE_DIR}/tests/ops/*.cc)
  add_executable(hocket_kernel_tests EXCLUDE_FROM_ALL ${kernel_tests})
  target_include_directories(hocket_kernel_tests PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(hocket_kernel_tests PRIVATE hocket_base hocket_graph hocket_ops hocket_kernels
    ${HOCKET_LEVELS} GTest::gtest GTest::gtest_main)
endif()
file(GLOB_RECURSE py_tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/*_test.py)
if(HOCKET_ONLY)
  set(py_tests "")  # they call the program
endif()
foreach(file ${py_tests})
  file(STRINGS ${file} left_out REGEX "^# ctest: slow, without sanitizers")
  if(left_out AND HOCKET_SANITIZE)
    continue()
  endif()
  hocket_test_entry(${file} ${hocket_python} ${CMAKE_SOURCE_DIR}/tools/py_file.py ${file})
endforeach()
