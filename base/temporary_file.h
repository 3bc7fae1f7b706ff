#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "tutti/base/descriptor.h"

namespace tutti {

/// So many random bytes of the system's, 32 at most, as hexadecimal digits.
std::string random_hex(size_t bytes);

/// What part of a name may be: 64 random bits, which no two processes draw alike. Host names,
/// process numbers and counters are no such thing: containers of one host share its name, and each
/// has a process 1.
std::string random_name();

struct TemporaryFile {
  std::string name;  // within the folder
  Descriptor file;   // open for writing; null: it could not be made
  int error = 0;     // why it could not (errno)
};

/// Makes a new, empty file in an open folder (or AT_FDCWD: `before` is a path), called `before`, a
/// random name and `after`. A name that is taken, by whatever was left behind, is passed over.
/// Whoever makes a file aside, to rename or link it to its place, makes it by this function.
TemporaryFile make_temporary_file(int folder, std::string_view before, std::string_view after,
                                  mode_t mode,
                                  const std::function<std::string()>& draw = random_name);

}  // namespace tutti
