# hocket_module(<folder> [DEPENDS <module>...] [EXCLUDE <subfolder or file>...] [APP] [ANALYSIS])
#   Makes the OBJECT library hocket_<folder> from src/<folder>/**/*.cc. A folder without sources is
#   skipped. Builds with HOCKET_SIM_ONLY leave out what is marked APP, builds without HOCKET_ANALYSIS what
#   is marked ANALYSIS. DEPENDS must name modules declared above it: a row sees only the rows above.
# hocket_executable(<name> <source>...)
#   An executable with every object.
# hocket_benchmarks()
#   hocket_bench from bench/**/*_bench.cc (Google Benchmark), if there are any, and
#   hocket_gemm_compare.

set(HOCKET_DECLARED "" CACHE INTERNAL "")
set(HOCKET_OBJECTS "" CACHE INTERNAL "")

function(hocket_module name)
  cmake_parse_arguments(ARG "APP;ANALYSIS" "" "DEPENDS;EXCLUDE" ${ARGN})
  foreach(dep ${ARG_DEPENDS})
    if(NOT dep IN_LIST HOCKET_DECLARED)
      message(FATAL_ERROR "module ${name} depends on ${dep}, which is not declared above it")
    endif()
  endforeach()
  set(HOCKET_DECLARED ${HOCKET_DECLARED} ${name} CACHE INTERNAL "")
  if(HOCKET_ONLY AND NOT name IN_LIST HOCKET_ONLY)
    return()
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cc)
  foreach(part ${ARG_EXCLUDE})
    list(FILTER sources EXCLUDE REGEX "^${CMAKE_SOURCE_DIR}/src/${name}/${part}(/|$)")
  endforeach()
  if(NOT sources OR (ARG_APP AND HOCKET_SIM_ONLY) OR (ARG_ANALYSIS AND NOT HOCKET_ANALYSIS))
    return()
  endif()
  string(REPLACE / _ target hocket_${name})
  add_library(${target} OBJECT ${sources})
  # Several files at a time, so that their headers are read once. Files of ops, models, program, passes, sim, whatif, planner, interop and cli
  # share names (infer, cost, read, Line, Options) that each keeps to itself.
  if((HOCKET_SIM_ONLY OR HOCKET_SANITIZE) AND NOT name MATCHES "^(ops|models|program|passes|sim|whatif|planner|interop|cli|cli/apps|cli/analysis)$")
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 4)
  endif()
  target_link_libraries(${target} PUBLIC hocket_flags)
  set(HOCKET_OBJECTS ${HOCKET_OBJECTS} ${target} CACHE INTERNAL "")
endfunction()

# The program and libhocket_torch (HocketTorch.cmake) both say with which comm/wire.h they were built; one with
# another is refused where it is loaded.
file(SHA256 ${CMAKE_SOURCE_DIR}/src/comm/wire.h hocket_wire)
string(SUBSTRING ${hocket_wire} 0 16 hocket_wire)
set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/comm/wire.h)
set_source_files_properties(${CMAKE_SOURCE_DIR}/src/comm/c10d.cc PROPERTIES
  COMPILE_DEFINITIONS HOCKET_WIRE="${hocket_wire}")

function(hocket_executable name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE ${HOCKET_OBJECTS} ${HOCKET_LEVELS} hocket_flags ${CMAKE_DL_LIBS})
endfunction()

function(hocket_benchmarks)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/bench/*_bench.cc)
  if(sources)
    find_package(benchmark REQUIRED)
    hocket_executable(hocket_bench ${sources})
    target_link_libraries(hocket_bench PRIVATE benchmark::benchmark benchmark::benchmark_main)
  endif()
  hocket_executable(hocket_gemm_compare bench/gemm_compare.cc)
endfunction()
