#include "tutti/base/temporary_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>

#include <array>
#include <cerrno>

#include "tutti/base/check.h"
#include "tutti/base/error.h"

namespace tutti {

std::string random_hex(size_t bytes) {
  std::array<unsigned char, 32> random;
  TUTTI_CHECK(bytes <= random.size());
  if (::getrandom(random.data(), bytes, 0) != static_cast<ssize_t>(bytes))
    throw system_error("cannot draw a random number", errno);
  std::string text;
  for (size_t i = 0; i < bytes; ++i) text += fmt::format("{:02x}", random[i]);
  return text;
}

std::string random_name() { return random_hex(8); }

TemporaryFile make_temporary_file(int folder, std::string_view before, std::string_view after,
                                  mode_t mode, const std::function<std::string()>& draw) {
  constexpr int kMostTries = 100;
  TemporaryFile made;
  for (int tries = 0; tries < kMostTries; ++tries) {
    made.name = fmt::format("{}{}{}", before, draw(), after);
    made.file.reset(
        ::openat(folder, made.name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
    made.error = made.file ? 0 : errno;
    if (made.error != EEXIST) break;
  }
  return made;
}

}  // namespace tutti
