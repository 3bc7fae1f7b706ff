#pragma once

/// Included by every header to begin with, so that an older language is refused in one line and not
/// in a hundred that are about something else.

#if __cplusplus < 202002L
#error "Tutti needs C++20: compile with -std=c++20; C and older C++ include <tutti.h> instead."
// A header that is not there ends the compilation; an #error alone does not.
#include <this_program_is_not_compiled_as_c++20>
#endif
