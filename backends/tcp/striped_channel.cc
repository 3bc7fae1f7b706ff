#include "tutti/backends/tcp/striped_channel.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <utility>

#include "tutti/base/check.h"
#include "tutti/base/error.h"

namespace tutti {

namespace {

// A part of `parts`: at most `most` bytes after the first `skip` bytes.
class Slice {
 public:
  Slice(std::span<const iovec> parts, size_t skip, size_t most) {
    for (const auto& part : parts) {
      if (bytes_ == most || count_ == kMostParts) return;
      if (skip >= part.iov_len) {
        skip -= part.iov_len;
        continue;
      }
      const size_t bytes = std::min(part.iov_len - skip, most - bytes_);
      parts_[count_++] = {static_cast<std::byte*>(part.iov_base) + skip, bytes};
      bytes_ += bytes;
      skip = 0;
    }
  }
  std::span<const iovec> parts() const { return {parts_.data(), count_}; }
  size_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kMostParts = 64;
  std::array<iovec, kMostParts> parts_;
  size_t count_ = 0, bytes_ = 0;
};

}  // namespace

StripedChannel::StripedChannel(std::vector<Descriptor> sockets) {
  TUTTI_CHECK(!sockets.empty());
  for (auto& socket : sockets) lanes_.push_back(std::make_unique<TcpChannel>(std::move(socket)));
}

double StripedChannel::quiet_seconds() {
  double shortest = lanes_.front()->quiet_seconds();
  for (const auto& lane : lanes_) shortest = std::min(shortest, lane->quiet_seconds());
  return shortest;
}

bool StripedChannel::delivered() {
  return std::all_of(lanes_.begin(), lanes_.end(),
                     [](const auto& lane) { return lane->delivered(); });
}

void StripedChannel::move(Cursor& cursor, size_t bytes) {
  cursor.left -= bytes;
  if (cursor.left == 0) cursor = {(cursor.lane + 1) % lanes_.size(), kBlockBytes};
}

size_t StripedChannel::write(std::span<const iovec> parts) {
  size_t written = 0;
  while (true) {
    const Slice slice(parts, written, writing_.left);
    if (slice.bytes() == 0) return written;
    const size_t bytes = lanes_[writing_.lane]->write(slice.parts());
    written += bytes;
    move(writing_, bytes);
    if (bytes < slice.bytes()) return written;
  }
}

size_t StripedChannel::read(std::span<std::byte> bytes) {
  const iovec part{bytes.data(), bytes.size()};
  return read_parts({&part, 1});
}

size_t StripedChannel::read_parts(std::span<const iovec> parts) {
  size_t got = 0;
  try {
    while (true) {
      const Slice slice(parts, got, reading_.left);
      if (slice.bytes() == 0) return got;
      auto& lane = *lanes_[reading_.lane];
      size_t bytes = lane.read_parts(slice.parts());
      if (bytes == 0 && got == 0 && failure() != nullptr) {
        // The first read may have returned nothing without asking the kernel. So the kernel is
        // asked now.
        bytes = lane.read_parts(slice.parts());
        if (bytes == 0) throw Error(ErrorCode::peer_lost, *failure());
      }
      got += bytes;
      move(reading_, bytes);
      if (bytes < slice.bytes()) return got;
    }
  } catch (const Error&) {
    // The caller first gets the bytes that were read. The next read throws again.
    if (got > 0) return got;
    for (const auto& lane : lanes_) lane->arm_for(0);
    throw;
  }
}

const std::string* StripedChannel::failure() const {
  for (const auto& lane : lanes_)
    if (!lane->failure().empty()) return &lane->failure();
  return nullptr;
}

bool StripedChannel::arm(bool wants_write) {
  if (failure() != nullptr) return false;  // read() reports the failure
  // Only the sockets whose turn it is are watched. Another socket may be readable or at its end
  // before its turn comes.
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const unsigned events =
        (i == reading_.lane ? EPOLLIN : 0u) | (wants_write && i == writing_.lane ? EPOLLOUT : 0u);
    lanes_[i]->arm_for(events);
  }
  return true;
}

void StripedChannel::watch(Poller& poller) {
  for (const auto& lane : lanes_) lane->watch(poller);
  arm(false);
}

}  // namespace tutti
