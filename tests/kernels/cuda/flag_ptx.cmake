# The PTX of the flag kernels holds what their protocol rests on.
file(READ "${PTX}" text)
foreach(instruction st.release.sys.global.u32 ld.acquire.sys.global.u32 st.volatile.global.v4.u32
        ld.volatile.global.v4.u32)
  string(FIND "${text}" "${instruction}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "${PTX} has no ${instruction}")
  endif()
endforeach()
# What a peer writes while the kernel runs must not come through the read-only cache.
string(FIND "${text}" "ld.global.nc" at)
if(NOT at EQUAL -1)
  message(FATAL_ERROR "${PTX} loads through the read-only cache")
endif()
