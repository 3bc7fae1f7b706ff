#pragma once

#include <algorithm>
#include <cstring>
#include <optional>

#include "tutti/backends/shared/pipeline.h"
#include "tutti/base/text.h"

// This header is shared by the source files of Pipeline. No other file includes it.

namespace tutti {

// A block of this size stays in the L1 cache.
inline constexpr int64_t kCacheBlockBytes = 16 << 10;

// Offsets within the payload of a chunk's line. At kInputAt is the offset of the rank's input, if
// peers read it in place. At CacheChoice::kDestinationAt is the Destination of a packed chunk. At
// kOutputAt is the offset of the rank's output, if peers write there.
inline constexpr size_t kInputAt = 0;
inline constexpr size_t kOutputAt = CacheChoice::kDestinationAt + sizeof(uint64_t);

// The size of the stripes into which the memory of a FusedUpdate is divided. Each stripe has one
// owner rank.
inline constexpr int64_t kStripeBytes = 64 << 10;

// Returns the number of whole elements per cache line. Shares are multiples of it, so that they
// begin on cache lines for every dtype.
inline int64_t elements_per_line(int64_t element_bytes) {
  return std::max<int64_t>(1, 64 / element_bytes);
}

// Returns the elements of `whole` that `rank` reduces.
inline Range share_of(int rank, int size, Range whole, int64_t element_bytes) {
  const int64_t unit = elements_per_line(element_bytes);
  const int64_t even = (whole.count + size - 1) / size;
  const int64_t share = (even + unit - 1) / unit * unit;
  const int64_t begin = std::min<int64_t>(rank * share, whole.count);
  return {whole.begin + begin, std::min(share, whole.count - begin)};
}

inline ReduceOp op_of(const Collective& collective) {
  return collective.op == ReduceOp::average ? ReduceOp::sum : collective.op;
}

inline Scale scale_of(const Collective& collective, const Launch& launch, int size) {
  Scale scale = collective.scale;
  if (collective.op == ReduceOp::average)
    scale.divisor *= launch.contributors > 0 ? launch.contributors : size;
  return scale;
}

// Returns the hash of an operation's name, scale, layout and counts. Returns 0 for an operation
// without a name, on which the ranks have already agreed.
inline uint64_t subject_of(const Collective& collective, const Launch& launch) {
  if (launch.name.empty()) return 0;
  uint64_t seed = 0;
  std::memcpy(&seed, &collective.scale.factor, sizeof seed);
  seed ^= launch.layout;
  // For kinds that exchange parts, the counts may differ between ranks. So they are not hashed.
  if (collective.send_counts.size() > 1 && !exchanges_parts(collective.kind))
    seed = hash_bytes(std::as_bytes(collective.send_counts), seed);
  return hash_text(launch.name, seed);
}

/// The parts that ranks send each other in an operation that moves elements. Each sending rank
/// contributes either one part for all ranks or one part for each rank. A chunk holds the same
/// range of every part.
struct Pipeline::Parts {
  int64_t count = 1;  // number of parts that each sending rank contributes
  std::span<const int64_t> send_counts, recv_counts;
  // by rank: offset in the input of the part for that rank, in elements
  std::vector<int64_t> given_at;
  // by rank: offset in the output of the part from that rank, in elements
  std::vector<int64_t> received_at;
  // True if this rank's part for itself is packed too, because the output may overwrite it.
  bool is_own_in_slot = false;
  // A copy of the input. It is made if the output may overwrite input that is not packed yet.
  std::vector<std::byte> held;
  uint64_t place = SharedMemory::kNowhere;  // offset of the input, if peers read it in place
  // True if any rank's input is read in place. Then a chunk is finished only when all ranks have
  // read it.
  bool is_kept = false;
  // Used if is_kept. By rank: the address of that rank's part for this rank, or null if the part is
  // in that rank's slot.
  std::vector<const std::byte*> sources;
};

/// One operation. Its chunks have the numbers [begin, end) in the queue.
class Pipeline::Call final : public Operation {
 public:
  explicit Call(Pipeline& pipeline) : pipeline_(pipeline) {}
  void prepare(const Collective& collective, const Launch& launch) {
    const int size = pipeline_.size();
    kind = collective.kind;
    root = has_root(kind) ? collective.root : 0;
    dtype = collective.dtype;
    element = size_of(dtype);
    asked_op = reduces(kind) ? collective.op : ReduceOp::sum;
    op = op_of(collective);
    verdict = launch.verdict;
    edges = launch.edges;
    input = collective.input;
    is_wanted = kind != CollectiveKind::reduce || root == pipeline_.rank_;
    output = is_wanted ? collective.output : nullptr;
    windows.assign(launch.windows.begin(), launch.windows.end());
    algorithm = kOneShot;
    scale = scale_of(collective, launch, size);
    update = launch.update;
    if (kind != CollectiveKind::allreduce && kind != CollectiveKind::reduce) {
      algorithm = kMove;
      lay_out_move(collective);
    } else {
      count = collective.send_counts[0];
      parts.count = 1;
      parts.is_kept = false;
    }
    if (algorithm != kMove && !windows.empty()) {
      algorithm = update == nullptr ? kDirect : kFused;
      chunk_elements = 0;
      reduced_elements = 0;
    } else {
      share_apart();
    }
    name = launch.name;
    subject = subject_of(collective, launch);
    why.reset();
    state = OperationState::pending;
  }
  // Lays out an operation if not all ranks can reach its memory.
  void share_apart() {
    windows.clear();
    if (algorithm != kMove)
      algorithm = count * element <= pipeline_.geometry_.one_shot_bytes ? kOneShot : kTwoShot;
    chunk_elements = pipeline_.elements_of_chunk(algorithm, kind, dtype, count);
    reduced_elements = 0;
  }
  void release() override {
    pipeline_.forget(*this);
    pipeline_.spare_.emplace_back(this);
  }

  OperationState advance() override {
    if (state == OperationState::pending) pipeline_.progress();
    return state;
  }
  const Error* failure() const override { return why ? &*why : nullptr; }
  bool lacks_ranks() const override { return pipeline_.lacks_ranks(); }
  void cancel() override {
    if (state != OperationState::pending) return;
    pipeline_.forget(*this);
    state = OperationState::failed;
  }

  uint64_t chunks() const {
    if (chunk_elements == 0) return 1;
    return static_cast<uint64_t>((count + chunk_elements - 1) / chunk_elements);
  }
  Range range_of(uint64_t chunk) const {
    if (chunk_elements == 0) return {0, count};
    const int64_t at = static_cast<int64_t>(chunk - begin) * chunk_elements;
    return {at, std::min(chunk_elements, count - at)};
  }
  size_t bytes(int64_t elements) const { return static_cast<size_t>(elements * element); }

  // fill() and drain() use the edges if there are any, and the input and output otherwise.
  void fill(Range range, std::byte* slot) const {
    if (range.count == 0 || slot == nullptr) return;
    if (edges.fill != nullptr)
      edges.fill(edges.self, range, slot);
    else
      std::memcpy(slot, input + range.begin * element, bytes(range.count));
  }
  void drain(Range range, const std::byte* result) const {
    if (range.count == 0) return;
    if (edges.drain != nullptr)
      edges.drain(edges.self, range, result, Scale{});
    else if (output != nullptr)
      std::memcpy(output + range.begin * element, result, bytes(range.count));
  }
  const std::byte* input_view(Range range) const {
    if (edges.fill == nullptr) return input + range.begin * element;
    return edges.input == nullptr ? nullptr : edges.input(edges.self, range);
  }
  // Returns whether the input need not be packed, because no other rank reads it. That holds for
  // the root of a reduce in one shot.
  bool keeps_input(Range range) const {
    return kind == CollectiveKind::reduce && is_wanted && input_view(range) != nullptr;
  }
  std::byte* output_view(Range range) const {
    if (edges.drain == nullptr) return output == nullptr ? nullptr : output + range.begin * element;
    return edges.output == nullptr ? nullptr : edges.output(edges.self, range);
  }

 private:
  Pipeline& pipeline_;

 public:
  // --- pipeline_move.cc: kinds that move elements ---
  void lay_out_move(const Collective& collective);
  bool gives(int rank) const;
  int64_t given_to(int rank) const;       // elements that this rank sends to `rank`
  int64_t received_from(int rank) const;  // elements that this rank receives from `rank`
  const std::byte* part_for(int rank) const;
  std::byte* place_for(int rank) const;  // address in the output for the part from `rank`
  size_t slot_bytes() const {            // bytes of a chunk; equal on all ranks
    return bytes(parts.count * (chunk_elements == 0 ? count : chunk_elements));
  }
  bool tells_place() const { return slot_bytes() > ChunkLine::kPayload; }
  // Returns whether a CacheChoice is useful for this operation. That is so if every part is long
  // and all parts are packed into slots.
  bool chooses_destination() const {
    return !parts.is_kept && slot_bytes() >= kLeastPastCaches * static_cast<size_t>(parts.count);
  }
  size_t destination_word() const {
    if (algorithm != kOneShot) return static_cast<size_t>(kind);
    return kind == CollectiveKind::reduce ? CacheChoice::kOneShotReduce : CacheChoice::kOneShot;
  }

  Parts parts;

  // --- all kinds ---
  CollectiveKind kind = CollectiveKind::allreduce;
  int root = 0;
  bool is_wanted = true;  // whether this rank needs the result
  DataType dtype = DataType::f32;
  int64_t element = 4;
  ReduceOp asked_op = ReduceOp::sum, op = ReduceOp::sum;
  // number of elements; for kinds that move elements, the number in the longest part of any rank
  int64_t count = 0;
  std::string_view name;  // borrowed; valid until the verdict is known
  uint64_t subject = 0;
  std::optional<Error> why;  // the error, if the operation failed
  uint32_t verdict = 0;
  Edges edges;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::vector<Window> windows;
  const FusedUpdate* update = nullptr;
  Scale scale;
  Pipeline::Algorithm algorithm = kOneShot;
  int64_t chunk_elements = 0;  // elements per chunk; 0: there is one chunk
  uint64_t begin = 0, end = 0;
  // for kDirect and kFused: how many elements of this rank's share are done
  int64_t reduced_elements = 0;
  OperationState state = OperationState::pending;
};

inline void Pipeline::tell_name(uint64_t chunk, uint64_t subject, std::string_view name) {
  const size_t slot = ChunkRing::slot_of(chunk);
  if (name.empty() || subject == named_[slot]) return;
  named_[slot] = subject;
  auto& text = own().names[slot].text;
  const size_t length = std::min(name.size(), sizeof text - 1);
  std::memcpy(text, name.data(), length);
  text[length] = 0;
}

inline void Pipeline::tell_call(const Call& call, uint64_t chunk) {
  ring_.own_line(chunk).call.tell(call.kind, call.dtype, call.asked_op, call.algorithm, call.count,
                                  call.root, call.subject, call.verdict);
  tell_name(chunk, call.subject, call.name);
}

// Returns whether all ranks published the same operation and none vetoes it.
inline bool Pipeline::is_agreed(uint64_t chunk) const {
  return ring_.all_tell_alike(chunk) && ring_.own_line(chunk).call.verdict() == 0;
}

}  // namespace tutti
