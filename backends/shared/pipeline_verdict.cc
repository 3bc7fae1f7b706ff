// The functions of Pipeline by which the ranks agree about an operation. With the first chunk of
// the operation, all ranks must publish the same description and no veto.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tutti/backends/shared/pipeline_call.h"
#include "tutti/base/error.h"

namespace tutti {

// Returns true if the operation may go on. If the ranks disagree or a rank vetoes, ends or restarts
// the operation and returns false.
bool Pipeline::learn_verdict(Call& call, uint64_t chunk) {
  if (is_agreed(chunk)) return true;
  if (call.subject != 0 && operations_.back() == &call && differs_in_place_only(chunk)) {
    // This is a blocking call, so nothing else is running. Some ranks passed memory that all ranks
    // can reach, and others did not. The operation restarts without using that memory in place. Its
    // new chunks come after the longest operation that any rank published.
    call.begin = end_of_all(call, chunk);
    ring_.skip_to(call.begin);
    call.share_apart();
    ring_.extend(call.chunks());
    call.end = ring_.end();
    return false;
  }
  uint32_t verdict = 0;
  for (size_t rank = 0; rank < peers_.size(); ++rank)
    verdict |= ring_.line(rank, chunk).call.verdict();
  call.state = verdict != 0 ? OperationState::vetoed : OperationState::failed;
  if (verdict == 0) {
    call.why =
        Error(ErrorCode::mismatch,
              fmt::format("{}; {} must have the same order and the same arguments on {} ranks. "
                          "Nothing was changed.",
                          describe_disagreement(chunk),
                          pair_.empty() ? "blocking calls" : "blocking sends and receives",
                          pair_.empty() ? "all" : "both"));
    call.end = end_of_all(call, chunk);
  }
  ring_.skip_to(call.end);
  std::erase(operations_, &call);
  return false;
}

// Returns one past the last chunk of the longest operation that any rank published with this chunk.
uint64_t Pipeline::end_of_all(const Call& call, uint64_t chunk) const {
  uint64_t end = call.end;
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    const auto& theirs = ring_.line(rank, chunk).call;
    const int64_t elements = elements_of_chunk(static_cast<Algorithm>(theirs.algorithm()),
                                               theirs.kind(), theirs.dtype(), theirs.count());
    if (elements > 0)
      end = std::max(
          end, call.begin + static_cast<uint64_t>((theirs.count() + elements - 1) / elements));
  }
  return end;
}

// Returns whether all ranks called the same allreduce and differ only in whether all ranks can
// reach their memory.
bool Pipeline::differs_in_place_only(uint64_t chunk) const {
  const auto is_plain = [](uint8_t algorithm) {
    return algorithm == kDirect || algorithm == kOneShot || algorithm == kTwoShot;
  };
  const auto& first = ring_.line(0, chunk).call;
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    const auto& call = ring_.line(rank, chunk).call;
    const bool is_alike = call.verdict() == 0 && is_plain(call.algorithm()) &&
                          call.kind() == first.kind() && call.dtype() == first.dtype() &&
                          call.op() == first.op() && call.extent == first.extent &&
                          call.subject == first.subject;
    if (!is_alike) return false;
  }
  return true;
}

std::string Pipeline::describe_disagreement(uint64_t chunk) const {
  bool are_allreduces = true;
  for (size_t rank = 0; rank < peers_.size(); ++rank)
    are_allreduces &= ring_.line(rank, chunk).call.kind() == CollectiveKind::allreduce;
  std::string text, first;
  bool look_alike = true;
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    const auto& call = ring_.line(rank, chunk).call;
    char name[sizeof(NameLine)];
    std::memcpy(name, peers_[rank].names[ChunkRing::slot_of(chunk)].text, sizeof name);
    name[sizeof name - 1] = 0;
    std::string said = are_allreduces ? "" : fmt::format("{} ", to_string(call.kind()));
    if (!pair_.empty()) said.clear();
    said += fmt::format(
        "\"{}\" with {}[{}]{}", name, to_string(call.dtype()), call.count(),
        call.algorithm() == kDirect || call.algorithm() == kFused ? " of a GradientArena" : "");
    if (reduces(call.kind())) said += fmt::format(" and op {}", to_string(call.op()));
    if (has_root(call.kind()) && pair_.empty()) said += fmt::format(" and root {}", call.root());
    if (pair_.empty())
      text += fmt::format("{}rank {} called {}", rank == 0 ? "" : ", ", rank, said);
    else
      text += fmt::format("{}rank {} {} {}", rank == 0 ? "" : ", ", pair_[rank],
                          rank == 0 ? "sends" : "receives", said);
    if (rank == 0) first = said;
    look_alike &= said == first;
  }
  if (look_alike) text += ", but not with the same rows for each rank or strides";
  return text;
}

}  // namespace tutti
