#include "tutti/backends/stream/stream_inlet.h"

#include <algorithm>
#include <cstring>

#include "tutti/base/check.h"

namespace tutti {

namespace {

// pump() returns after reading this much. So frames are used while they are in the cache, and the
// receives for the next frames are posted meanwhile.
constexpr size_t kEnoughBytes = 64 << 10;
constexpr size_t kEnoughFrames = 4096;

}  // namespace

bool Inlet::fill(Channel& channel) {
  if (begin_ > 0) {
    std::memmove(staging_.data(), staging_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  const std::span<std::byte> room(staging_.data() + end_, staging_.size() - end_);
  const size_t count = channel.read(room);
  TUTTI_CHECK(count <= room.size());
  end_ += count;
  return count > 0;
}

// Reads a part of the payload; returns false if nothing has come.
bool Inlet::read_payload(Channel& channel) {
  const size_t left = frame_.payload() - arrived_;
  size_t count = std::min(left, end_ - begin_);
  if (count > 0) {
    if (target_) std::memcpy(target_ + arrived_, staging_.data() + begin_, count);
    begin_ += count;
  } else if (target_) {
    // The staging buffer is empty at this point. So one read gets the rest of the payload and, in
    // the staging buffer, the bytes that follow it.
    const std::array<iovec, 2> parts{
        {{target_ + arrived_, left}, {staging_.data(), staging_.size()}}};
    count = channel.read_parts(parts);
    TUTTI_CHECK(count <= left + staging_.size());
    begin_ = 0;
    end_ = count - std::min(count, left);
    count = std::min(count, left);
  } else {
    // The payload is thrown away, because its tag was discarded or its receive was cancelled.
    count = channel.read({staging_.data(), std::min(left, staging_.size())});
  }
  arrived_ += count;
  return count > 0;
}

bool Inlet::pump(int peer, Channel& channel, Reader& reader) {
  size_t bytes = 0;
  for (size_t frames = 0; !stopped_; ++frames) {
    has_more_ = bytes >= kEnoughBytes || frames >= kEnoughFrames;
    if (has_more_) return true;
    if (!in_frame_) {
      while (end_ - begin_ < kFrameBytes) {
        if (!fill(channel)) return bytes > 0;
        bytes += 1;
      }
      frame_ = decode_frame(
          std::span<const std::byte, kFrameBytes>(staging_.data() + begin_, kFrameBytes));
      begin_ += kFrameBytes;
      bytes += kFrameBytes;
      arrived_ = 0;
      target_ = nullptr;
      in_frame_ = true;
      target_ = reader.frame_begins(peer, frame_);
    }
    while (arrived_ < frame_.payload()) {
      const size_t before = arrived_;
      if (!read_payload(channel)) return bytes > 0;
      bytes += arrived_ - before;
    }
    in_frame_ = false;
    reader.frame_ends(peer, frame_);
  }
  has_more_ = begin_ < end_;
  return bytes > 0;
}

}  // namespace tutti
