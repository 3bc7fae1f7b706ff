#pragma once

#include <array>
#include <cstddef>

#include "tutti/backends/channel.h"
#include "tutti/backends/stream/frame.h"

namespace tutti {

/// The incoming half of one peer of a StreamCore. It cuts the channel's bytes into frames, whose
/// payload goes straight to the memory that the reader names.
class Inlet {
 public:
  class Reader {
   public:
    /// Called when a frame begins. Returns where its payload goes; null: nowhere.
    virtual std::byte* frame_begins(int peer, const FrameHeader& frame) = 0;
    /// Called when all of the payload is there, and for frames without payload too.
    virtual void frame_ends(int peer, const FrameHeader& frame) = 0;

   protected:
    ~Reader() = default;
  };

  /// Reads until the channel is empty, the reader calls stop(), or enough is read for one call.
  /// Returns true if something came. Throws what the channel and the reader throw, and
  /// Error(corrupt_data).
  bool pump(int peer, Channel& channel, Reader& reader);
  /// Changes where the rest of the current payload goes: null drops it, else `target` is memory for
  /// the whole payload. The part that has already arrived is not copied there.
  void redirect(std::byte* target) { target_ = target; }
  /// Returns how many bytes of the current payload have arrived.
  size_t arrived() const { return arrived_; }
  /// Makes pump() return after the current frame; further frames may stay in the staging buffer.
  void stop() { stopped_ = true; }
  void resume() { stopped_ = false; }
  bool stopped() const { return stopped_; }
  /// True if pump() returned although there may be more.
  bool has_more() const { return has_more_; }

 private:
  bool fill(Channel& channel);
  bool read_payload(Channel& channel);

  // Headers and small frames are read many at a time; large payloads bypass this buffer.
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
