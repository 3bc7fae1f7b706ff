# Checks that the PTX of the flag kernels has the instructions that their protocol needs.
file(READ "${PTX}" text)
foreach(instruction st.release.sys.global.u32 ld.acquire.sys.global.u32 st.volatile.global.v4.u32
        ld.volatile.global.v4.u32)
  string(FIND "${text}" "${instruction}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "${PTX} has no ${instruction}")
  endif()
endforeach()
# Data that a peer writes while the kernel runs must not come through the read-only cache.
string(FIND "${text}" "ld.global.nc" at)
if(NOT at EQUAL -1)
  message(FATAL_ERROR "${PTX} loads through the read-only cache")
endif()
