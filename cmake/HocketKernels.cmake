# hocket_cpu_kernels()
#   Compiles src/kernels/cpu once for every row of src/kernels/levels.inc, each time into a namespace of
#   its own (HOCKET_CPU). What inline functions they share with the rest of the program (std::, base/)
#   must come from the least demanding object. The linker keeps the first copy that it meets, so these
#   are archives: it reads them after all objects, in the order given here.
#   tests/kernels/levels_test.py holds the executable to that.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set(hocket_levels x86_64_v2 x86_64_v3 x86_64_v4)
  set(hocket_level_flags_x86_64_v2 -march=x86-64-v2)
  set(hocket_level_flags_x86_64_v3 -march=x86-64-v3)
  set(hocket_level_flags_x86_64_v4 -march=x86-64-v4 -mprefer-vector-width=512)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(hocket_levels armv8)
else()
  set(hocket_levels plain)
endif()
set(HOCKET_LEVELS "" CACHE INTERNAL "")

function(hocket_cpu_kernels)
  if(HOCKET_SIM_ONLY OR (HOCKET_ONLY AND NOT kernels IN_LIST HOCKET_ONLY))
    return()
  endif()
  set(optimised -O3)
  if(HOCKET_SANITIZE MATCHES thread)
    set(optimised -O1)  # which thread writes what is the same
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/cpu/*.cc)
  set(libraries "")
  foreach(level ${hocket_levels})
    set(name hocket_kernels_${level})
    add_library(${name} STATIC ${sources})
    target_compile_definitions(${name} PRIVATE HOCKET_CPU=${level})
    # Several files at a time, so that their headers are read once.
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 5)
    # Every sum of a product is a chain of fused multiply-adds, whatever the number of rows. GCC 14 avoids such chains in some
    # loops, and the bits would depend on the number of rows (linear_test).
    target_compile_options(${name} PRIVATE ${optimised} -fopenmp-simd -Wno-subobject-linkage
      ${hocket_level_flags_${level}} $<$<CXX_COMPILER_ID:GNU>:--param=avoid-fma-max-bits=0>)
    target_link_libraries(${name} PUBLIC hocket_flags)
    list(APPEND libraries ${name})
  endforeach()
  set(HOCKET_LEVELS ${libraries} CACHE INTERNAL "")
endfunction()
