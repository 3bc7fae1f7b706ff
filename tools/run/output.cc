#include "tools/run/output.h"

#include <fmt/format.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace tutti::run {

void LineOutput::take(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    // A carriage return ends a line too, because progress bars use it to overwrite themselves.
    const bool ends = c == '\n' || c == '\r';
    if (c == '\n' && after_return_)
      text += c;
    else if (ends)
      text += prefix_ + pending_ + c;
    else
      pending_ += c;
    after_return_ = c == '\r';
    if (pending_.size() == kLongestLine) text += prefix_ + pending_ + '\n';
    if (ends || pending_.size() == kLongestLine) pending_.clear();
  }
  if (!text.empty()) sink_(text);
}

void LineOutput::finish() {
  if (!pending_.empty()) sink_(prefix_ + pending_ + '\n');
  pending_.clear();
}

void LastLines::take(std::string_view bytes) {
  for (const char c : bytes) {
    if (c != '\n' && c != '\r') {
      if (pending_.size() < LineOutput::kLongestLine) pending_ += c;
      continue;
    }
    if (!pending_.empty()) lines_.push_back(std::move(pending_));
    pending_.clear();
    if (lines_.size() > kLines) lines_.pop_front();
  }
}

std::deque<std::string> LastLines::lines() const {
  auto lines = lines_;
  if (!pending_.empty()) lines.push_back(pending_);
  while (lines.size() > kLines) lines.pop_front();
  return lines;
}

std::string rank_prefix(int rank, bool colour) {
  if (!colour) return fmt::format("[{}] ", rank);
  return fmt::format("\033[{}m[{}]\033[0m ", 31 + rank % 6, rank);
}

Outlet::Outlet(int descriptor)
    : descriptor_(descriptor), piece_([&]() -> size_t {
        struct stat status {};
        const bool is_file = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
        return is_file ? kFull : PIPE_BUF;
      }()) {}

void Outlet::write(std::string_view bytes) {
  pending_ += bytes;
  flush();
}

// The descriptor stays blocking, because others share it: the shell, or the ranks of an outer
// launcher. It is therefore polled before each piece.
void Outlet::flush() {
  while (written_ < pending_.size()) {
    pollfd entry{descriptor_, POLLOUT, 0};
    if (::poll(&entry, 1, 0) <= 0) break;
    const auto count = ::write(descriptor_, pending_.data() + written_,
                               std::min(piece_, pending_.size() - written_));
    if (count >= 0) {
      written_ += static_cast<size_t>(count);
    } else if (errno != EINTR && errno != EAGAIN) {
      if (failure_ == 0 && errno != EPIPE) failure_ = errno;
      written_ = pending_.size();
    }
  }
  if (written_ == pending_.size() || written_ >= kFull) {
    pending_.erase(0, written_);
    written_ = 0;
  }
}

int write_all(int descriptor, std::string_view bytes, Deadline deadline) {
  while (!bytes.empty() && !deadline.passed()) {
    const auto written = ::write(descriptor, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {
      pollfd entry{descriptor, POLLOUT, 0};
      ::poll(&entry, 1, deadline.poll_milliseconds());
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace tutti::run
