# Compiler settings and the libraries from the system, gathered in the target `hocket_flags`.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1 -DNDEBUG")
if(HOCKET_SANITIZE)
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -g1")
endif()
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g")
if(HOCKET_SIM_ONLY)
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG")  # made to be built soon
endif()
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release or Debug" FORCE)
endif()

find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(ZLIB REQUIRED)
find_library(HOCKET_PCRE2_LIBRARY pcre2-8 REQUIRED)
find_library(HOCKET_UTF8PROC_LIBRARY utf8proc REQUIRED)
find_library(HOCKET_LZMA_LIBRARY lzma REQUIRED)
find_path(HOCKET_XXHASH_INCLUDE xxhash.h REQUIRED)

add_library(hocket_flags INTERFACE)
target_include_directories(hocket_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
target_compile_options(hocket_flags INTERFACE -Wall -Wextra -fno-math-errno)
if(HOCKET_UNITY)
  # A class of one file that holds another one of the same file: a batch includes both, as if they were a header's.
  target_compile_options(hocket_flags INTERFACE -Wno-subobject-linkage)
endif()
target_compile_definitions(hocket_flags INTERFACE HOCKET_VERSION="${PROJECT_VERSION}")
set(hocket_yaml yaml-cpp)  # the name of 0.7 (Debian 12); 0.8 (Ubuntu 24.04) has the other
if(TARGET yaml-cpp::yaml-cpp)
  set(hocket_yaml yaml-cpp::yaml-cpp)
endif()
target_link_libraries(hocket_flags INTERFACE fmt::fmt ${hocket_yaml} nlohmann_json::nlohmann_json
  ZLIB::ZLIB ${HOCKET_PCRE2_LIBRARY} ${HOCKET_UTF8PROC_LIBRARY} ${HOCKET_LZMA_LIBRARY} Threads::Threads)
# A target with this property is compiled without sanitizers (tests/CMakeLists.txt gives the reason).
set(hocket_watched $<NOT:$<BOOL:$<TARGET_PROPERTY:HOCKET_UNWATCHED>>>)
if(HOCKET_WERROR)
  # Instrumented, a source has warnings of values that the instrumentation alone reads.
  if(HOCKET_SANITIZE)
    target_compile_options(hocket_flags INTERFACE $<$<NOT:${hocket_watched}>:-Werror>)
  else()
    target_compile_options(hocket_flags INTERFACE -Werror)
  endif()
endif()
if(HOCKET_SANITIZE)
  target_compile_options(hocket_flags INTERFACE
    "$<${hocket_watched}:-fsanitize=${HOCKET_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all>")
  if(HOCKET_SANITIZE MATCHES undefined)
    # A third of the time to compile; what goes through a wrong pointer, AddressSanitizer sees.
    target_compile_options(hocket_flags INTERFACE
      $<${hocket_watched}:-fno-sanitize=null,vptr,object-size,pointer-overflow>)
  endif()
  target_link_options(hocket_flags INTERFACE -fsanitize=${HOCKET_SANITIZE})
endif()
