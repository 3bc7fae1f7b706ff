#include "tutti/base/standard_streams.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "tutti/base/error.h"

namespace tutti {

void complete_standard_streams() {
  for (int stream = 0; stream < 3; ++stream) {
    if (::fcntl(stream, F_GETFD) >= 0) continue;
    const int opened = ::open("/dev/null", O_RDWR);
    if (opened < 0)
      throw system_error(fmt::format("cannot open /dev/null as standard stream {}", stream), errno);
    if (opened > 2) ::close(opened);  // another thread opened the stream first
  }
}

}  // namespace tutti
