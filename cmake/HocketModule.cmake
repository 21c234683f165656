# hocket_module(<folder> [DEPENDS <module>...] [EXCLUDE <subfolder or file>...] [ALONE <regex>]
#               [APP] [ANALYSIS] [COLD])
#   Makes the OBJECT library hocket_<folder> from src/<folder>/**/*.cc. A folder without sources is
#   skipped. Builds with HOCKET_SIM_ONLY leave out what is marked APP, builds without HOCKET_ANALYSIS what
#   is marked ANALYSIS. DEPENDS must name modules declared above it: a row sees only the rows above.
#   COLD is what takes no time when it runs: it is optimised less, and linked last. Of an inline function the
#   linker keeps the first copy. ALONE: see hocket_batches.
# hocket_batches(<variable> <name> <root> <alone> <source>...)
#   Sets the variable to files to compile instead of the sources: each includes several of them, so that their
#   headers are read, and their templates made, once. That halves the time of a build. Files of one batch must not
#   name different things alike; a file whose name matches the regular expression <alone> is compiled by itself,
#   as is one with options of its own. Paths are written relative to <root>, so that ccache knows a batch again in
#   another checkout. Without HOCKET_UNITY there are no batches.
# hocket_executable(<name> <source>...)
#   An executable with every object.
# hocket_without(<name> <macro> APP|ANALYSIS <source>...)
#   The program without the objects of the modules that are so marked, linked from those that there are: <source>
#   are the files that see the macro, which alone are compiled again. What is left must link and run, which costs
#   CI seconds. Made when asked for.
# hocket_benchmarks()
#   hocket_bench from bench/**/*_bench.cc (Google Benchmark), if there are any, and
#   hocket_gemm_compare.

set(HOCKET_DECLARED "" CACHE INTERNAL "")
set(HOCKET_OBJECTS "" CACHE INTERNAL "")
set(HOCKET_COLD_OBJECTS "" CACHE INTERNAL "")
set(HOCKET_APP_OBJECTS "" CACHE INTERNAL "")
set(HOCKET_ANALYSIS_OBJECTS "" CACHE INTERNAL "")

function(hocket_batches result name root alone)
  set(batch_bytes 45000)  # a batch compiles in about 20 s
  set(compiled "")
  set(text "")
  set(bytes 0)
  set(number 1)
  set(sources ${ARGN})
  list(APPEND sources end)
  foreach(source ${sources})
    set(size 0)
    if(NOT source STREQUAL end)
      get_source_file_property(options ${source} COMPILE_OPTIONS)
      get_source_file_property(definitions ${source} COMPILE_DEFINITIONS)
      if(NOT HOCKET_UNITY OR options OR definitions OR (alone AND source MATCHES "${alone}"))
        list(APPEND compiled ${source})
        continue()
      endif()
      file(SIZE ${source} size)
    endif()
    math(EXPR sum "${bytes} + ${size}")
    if(text AND (source STREQUAL end OR sum GREATER batch_bytes))
      set(batch ${CMAKE_BINARY_DIR}/batches/${name}_${number}.cc)
      file(CONFIGURE OUTPUT ${batch} CONTENT "${text}" @ONLY)  # written only if it changes
      list(APPEND compiled ${batch})
      math(EXPR number "${number} + 1")
      set(text "")
      set(bytes 0)
    endif()
    if(NOT source STREQUAL end)
      file(RELATIVE_PATH path ${root} ${source})
      string(APPEND text "#include \"${path}\"\n")
      math(EXPR bytes "${bytes} + ${size}")
    endif()
  endforeach()
  set(${result} ${compiled} PARENT_SCOPE)
endfunction()

function(hocket_module name)
  cmake_parse_arguments(ARG "APP;ANALYSIS;COLD" "ALONE" "DEPENDS;EXCLUDE" ${ARGN})
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
  hocket_batches(compiled ${target} ${CMAKE_SOURCE_DIR}/src "${ARG_ALONE}" ${sources})
  add_library(${target} OBJECT ${compiled})
  target_link_libraries(${target} PUBLIC hocket_flags)
  foreach(mark APP ANALYSIS)
    if(ARG_${mark})
      set(HOCKET_${mark}_OBJECTS ${HOCKET_${mark}_OBJECTS} ${target} CACHE INTERNAL "")
    endif()
  endforeach()
  if(ARG_COLD)
    target_compile_options(${target} PRIVATE -O1)
    set(HOCKET_COLD_OBJECTS ${HOCKET_COLD_OBJECTS} ${target} CACHE INTERNAL "")
  else()
    set(HOCKET_OBJECTS ${HOCKET_OBJECTS} ${target} CACHE INTERNAL "")
  endif()
endfunction()

# The program and libhocket_torch (HocketTorch.cmake) both say with which comm/transport.h they were built; one with
# another is refused where it is loaded.
file(SHA256 ${CMAKE_SOURCE_DIR}/src/comm/transport.h hocket_transport)
string(SUBSTRING ${hocket_transport} 0 16 hocket_transport)
set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/comm/transport.h)
set_source_files_properties(${CMAKE_SOURCE_DIR}/src/comm/c10d.cc PROPERTIES
  COMPILE_DEFINITIONS HOCKET_TRANSPORT="${hocket_transport}")

function(hocket_executable name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE ${HOCKET_OBJECTS} ${HOCKET_COLD_OBJECTS} ${HOCKET_LEVELS} hocket_flags ${CMAKE_DL_LIBS})
endfunction()

function(hocket_without name macro mark)
  set(objects "")
  set(same "")
  foreach(source ${ARGN})
    string(REPLACE "." "[.]" same_source "/${source}.o$")
    list(APPEND same "${same_source}")
  endforeach()
  list(JOIN same "|" same)
  foreach(target ${HOCKET_OBJECTS} ${HOCKET_COLD_OBJECTS})
    if(NOT target IN_LIST HOCKET_${mark}_OBJECTS)
      list(APPEND objects "$<FILTER:$<TARGET_OBJECTS:${target}>,EXCLUDE,${same}>")
    endif()
  endforeach()
  add_executable(${name} EXCLUDE_FROM_ALL src/cli/main.cc ${ARGN} ${objects})
  target_compile_definitions(${name} PRIVATE ${macro})
  target_include_directories(${name} PRIVATE ${CMAKE_BINARY_DIR}/generated)
  set(levels "")
  if(NOT mark STREQUAL APP)
    set(levels ${HOCKET_LEVELS})
  endif()
  target_link_libraries(${name} PRIVATE ${levels} hocket_flags ${CMAKE_DL_LIBS})
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
