#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/bench/workload/exact_data.h"
#include "tools/bench/workload/settings.h"
#include "tutti/core/arena.h"
#include "tutti/core/communicator.h"

namespace tutti::bench {

/// The elements of one call, by the convention of nccl-tests. `total` is the number in the whole
/// buffer. `count` is the number in the input of one rank, or for a scatter in its output.
struct Volume {
  int64_t total = 0, count = 0;
};
/// Returns at least one element per rank. If the ranks divide the buffer, `total` is a multiple of
/// the number of ranks.
Volume volume_of(std::string_view collective, int64_t bytes, DataType dtype, int ranks);

/// Returns whether the library offers the collective by this kind of call, in or out of place.
bool exists(std::string_view collective, Way way, bool in_place);

/// One collective with its own buffers, whose results can be checked.
class Exercise {
 public:
  struct Call {
    std::string_view collective;
    Way way = Way::named;
    bool in_place = false;
    DataType dtype = DataType::f32;
    ReduceOp op = ReduceOp::sum;
    int root = 0;
    Volume volume;
  };
  /// Touches all memory. The communicator must outlive this object.
  Exercise(Communicator& communicator, const Call& call);

  /// Restores the initial input, and overwrites a separate output with invalid bytes.
  void refill();
  void run(int64_t iterations) {
    for (int64_t i = 0; i < iterations; ++i) run_();
  }
  /// Returns how many elements of this rank's result are wrong after one run since refill().
  int64_t count_wrong() const;

 private:
  // A part of the result: `count` elements from `offset` on must equal `pattern` from `phase` on.
  struct Share {
    int64_t offset = 0, count = 0;
    Pattern pattern;
    int64_t phase = 0;
  };
  void make_buffers(const Call& call);
  TensorView memory(const Call& call, int64_t count);
  void make_run(const Call& call);
  // The peers that this rank sends to and receives from. Their names are in names_.
  struct Ring {
    int to, from;
  };
  Ring next_in_ring();
  void make_start(const Call& call);
  void make_blocking(const Call& call);
  void run_until_replayed();
  static int64_t output_count(const Call& call);
  void expect(const Call& call);

  Communicator& communicator_;
  const std::string name_;
  const ExactData data_;
  std::optional<GradientArena> arena_;
  std::vector<float> vector_;
  std::vector<NamedTensor> group_;
  std::vector<Tensor> memory_;
  std::vector<SharedRegion> regions_;
  TensorView input_, output_;
  std::optional<Pattern> pattern_;  // pattern of the input; none: this rank has no input
  std::vector<Share> shares_;
  // start_ runs the call by names or handles. names_ are the names that it uses, and handles_ are
  // the handles of these names.
  std::function<void(std::span<const OperationName>)> start_;
  std::vector<std::string> names_;
  std::vector<TensorHandle> handles_;
  std::vector<OperationName> called_;
  std::function<void()> run_;
};

}  // namespace tutti::bench
