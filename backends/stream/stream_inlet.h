#pragma once

#include <array>
#include <cstddef>

#include "tutti/backends/channel.h"
#include "tutti/backends/stream/frame.h"

namespace tutti {

/// The incoming half of one peer of a StreamCore. It cuts the channel's bytes into frames. The
/// payload of a frame goes straight to the memory that the Reader returns.
class Inlet {
 public:
  class Reader {
   public:
    /// Called when a frame begins. Returns the memory for its payload; null: the payload is
    /// dropped.
    virtual std::byte* frame_begins(int peer, const FrameHeader& frame) = 0;
    /// Called when the whole payload has arrived. Also called for frames without payload.
    virtual void frame_ends(int peer, const FrameHeader& frame) = 0;

   protected:
    ~Reader() = default;
  };

  /// Reads until the channel is empty, the reader calls stop(), or enough was read for one call.
  /// Returns true if bytes came. Throws Error(corrupt_data) and whatever the channel or the reader
  /// throws.
  bool pump(int peer, Channel& channel, Reader& reader);
  /// Changes the destination of the current payload. Null drops the rest. Otherwise `target` is
  /// memory for the whole payload; only the part that has not arrived yet is written there.
  void redirect(std::byte* target) { target_ = target; }
  /// Returns the number of bytes of the current payload that have arrived.
  size_t arrived() const { return arrived_; }
  /// Makes pump() return after the current frame; further frames may stay in the staging buffer.
  void stop() { stopped_ = true; }
  void resume() { stopped_ = false; }
  bool stopped() const { return stopped_; }
  /// Returns true if the last pump() returned although there may be more bytes.
  bool has_more() const { return has_more_; }

 private:
  bool fill(Channel& channel);
  bool read_payload(Channel& channel);

  // Headers and small frames are read many at a time. Large payloads bypass this buffer.
  static constexpr size_t kStagingBytes = 4096;
  std::array<std::byte, kStagingBytes> staging_;
  size_t begin_ = 0;
  size_t end_ = 0;

  FrameHeader frame_;
  bool in_frame_ = false;
  std::byte* target_ = nullptr;
  size_t arrived_ = 0;
  bool stopped_ = false;
  bool has_more_ = false;
};

}  // namespace tutti
