#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "tutti/base/descriptor.h"

namespace tutti {

/// `bytes` random bytes from the system, 32 at most, as hexadecimal digits.
std::string random_hex(size_t bytes);

/// 64 random bits for a part of a name. No two processes draw the same. Host names, process numbers
/// and counters would not do: containers of one host share its name, and each has a process 1.
std::string random_name();

struct TemporaryFile {
  std::string name;  // within the folder
  Descriptor file;   // open for writing; null: it could not be made
  int error = 0;     // the errno if it could not be made
};

/// Makes a new, empty file in an open folder. Its name is `before`, a random name and `after`; with
/// AT_FDCWD as folder, `before` is a path. A name that is taken is passed over. All code that
/// writes a file first and then renames or links it to its place makes the file by this function.
TemporaryFile make_temporary_file(int folder, std::string_view before, std::string_view after,
                                  mode_t mode,
                                  const std::function<std::string()>& draw = random_name);

}  // namespace tutti
