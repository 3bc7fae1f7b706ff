#pragma once

/// Every header includes this first, so that an older language is rejected in one line instead of
/// in a hundred unrelated errors.

#if __cplusplus < 202002L
#error "Tutti needs C++20: compile with -std=c++20; C and older C++ include <tutti.h> instead."
// There is no such header, so the compilation ends here. It would go on after an #error.
#include <this_program_is_not_compiled_as_c++20>
#endif
