#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "tutti/base/descriptor.h"

namespace tutti {

/// Returns `bytes` random bytes from the system, at most 32, as hexadecimal digits.
std::string random_hex(size_t bytes);

/// Returns 64 random bits for a part of a name, so that no two processes get the same name. Host
/// names, process numbers and counters do not suffice: containers of one host share its name, and
/// each has a process 1.
std::string random_name();

struct TemporaryFile {
  std::string name;  // name within the folder
  Descriptor file;   // open for writing; null if the file could not be created
  int error = 0;     // errno if the file could not be created
};

/// Creates a new, empty file in an open folder. The name is `before` + random characters + `after`.
/// If the folder is AT_FDCWD, `before` begins with a path. If a name is taken, another one is
/// drawn. Code that writes a file and then renames or links it to its final name must create the
/// file with this function.
TemporaryFile make_temporary_file(int folder, std::string_view before, std::string_view after,
                                  mode_t mode,
                                  const std::function<std::string()>& draw = random_name);

}  // namespace tutti
