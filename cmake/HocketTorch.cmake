# Finds LibTorch (TORCH_DIR, else the wheel in .venv) and makes the shared library hocket_torch,
# which the executables load at run time. What it needs from the torch-free objects stays undefined
# in it and is found in the executable.
if(DEFINED ENV{TORCH_DIR})
  set(hocket_torch_dir $ENV{TORCH_DIR})
endif()
if(TORCH_DIR)
  set(hocket_torch_dir ${TORCH_DIR})
endif()
if(NOT hocket_torch_dir)
  file(GLOB hocket_torch_dir ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
endif()
if(NOT hocket_torch_dir OR NOT EXISTS ${hocket_torch_dir}/share/cmake/Torch/TorchConfig.cmake)
  message(FATAL_ERROR "no LibTorch at '${hocket_torch_dir}'; run tools/setup.sh, set TORCH_DIR to "
    "the torch folder of a pip installation, or configure with -DHOCKET_TORCH=OFF")
endif()
list(APPEND CMAKE_PREFIX_PATH ${hocket_torch_dir})
find_package(Torch REQUIRED)
message(STATUS "LibTorch ${Torch_VERSION} in ${hocket_torch_dir}")

file(WRITE ${CMAKE_BINARY_DIR}/hocket_torch_anchor.cc.in
  "// Keeps the library non-empty; says which LibTorch it was built with.\n"
  "extern \"C\" const char* hocket_torch_version() { return \"${Torch_VERSION}\"; }\n")
configure_file(${CMAKE_BINARY_DIR}/hocket_torch_anchor.cc.in
  ${CMAKE_BINARY_DIR}/hocket_torch_anchor.cc COPYONLY)
add_library(hocket_torch SHARED ${CMAKE_BINARY_DIR}/hocket_torch_anchor.cc)
target_include_directories(hocket_torch SYSTEM PRIVATE ${TORCH_INCLUDE_DIRS})
target_link_libraries(hocket_torch PRIVATE hocket_flags ${TORCH_LIBRARIES})
target_precompile_headers(hocket_torch PRIVATE <ATen/ATen.h>)
# LibTorch's headers bring a newer fmt, which comes first in the include path: use it header-only.
target_compile_definitions(hocket_torch PRIVATE FMT_HEADER_ONLY)
target_compile_options(hocket_torch PRIVATE -O3)
if(HOCKET_NATIVE)
  target_compile_options(hocket_torch PRIVATE -march=native)
endif()
set_target_properties(hocket_torch PROPERTIES
  BUILD_RPATH ${hocket_torch_dir}/lib INSTALL_RPATH ${hocket_torch_dir}/lib)

# OpenMP: the wheel brings its own libgomp. Compile for OpenMP and link that very file, so that a
# process never holds two OpenMP runtimes with a thread team each.
file(GLOB hocket_gomp ${hocket_torch_dir}/lib/libgomp*.so* ${hocket_torch_dir}/../torch.libs/libgomp*.so*)
if(hocket_gomp)
  list(GET hocket_gomp 0 hocket_gomp)
  target_compile_options(hocket_torch PRIVATE -fopenmp)
  target_link_libraries(hocket_torch PRIVATE ${hocket_gomp})
else()
  find_package(OpenMP REQUIRED)
  target_link_libraries(hocket_torch PRIVATE OpenMP::OpenMP_CXX)
endif()
