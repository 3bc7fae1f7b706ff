#pragma once

#include <array>
#include <cstddef>

#include "tutti/backends/channel.h"
#include "tutti/backends/stream/frame.h"

namespace tutti {

/// The incoming half of one peer of a StreamCore: bytes of the channel become frames, whose
/// payload goes straight to where the reader wants it.
class Inlet {
 public:
  class Reader {
   public:
    /// A frame begins; returns where its payload goes, null: nowhere.
    virtual std::byte* frame_begins(int peer, const FrameHeader& frame) = 0;
    /// All of the payload is there (called for frames without payload too).
    virtual void frame_ends(int peer, const FrameHeader& frame) = 0;

   protected:
    ~Reader() = default;
  };

  /// Reads until the channel is empty, the reader called stop(), or it was enough for once; true if
  /// something came. Throws what the channel and the reader throw, and Error(corrupt_data).
  bool pump(int peer, Channel& channel, Reader& reader);
  /// The rest of the payload that is being read goes elsewhere: null, or memory for all of it, into
  /// which the part that has arrived is not copied.
  void redirect(std::byte* target) { target_ = target; }
  /// How much of the current payload has arrived.
  size_t arrived() const { return arrived_; }
  /// pump() returns after the current frame; frames may be left over.
  void stop() { stopped_ = true; }
  void resume() { stopped_ = false; }
  bool stopped() const { return stopped_; }
  /// pump() returned although there may be more.
  bool has_more() const { return has_more_; }

 private:
  bool fill(Channel& channel);
  bool read_payload(Channel& channel);

  // Headers and small frames are read many at a time; large payloads pass this by.
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
