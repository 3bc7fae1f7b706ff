// Runs the benchmarks' workloads with an MPI library. It is built once with Open MPI's compiler
// wrapper and once with MPICH's.
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/common/data.h"
#include "benchmarks/common/flags.h"
#include "benchmarks/common/gradient_set.h"
#include "benchmarks/common/sizes.h"
#include "benchmarks/common/words.h"
#include "benchmarks/peers/mpi_team.h"

namespace tutti::benchmarks {

namespace {

void allreduce(float* data, int64_t count) {
  MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

void run_allreduce(const Flags& flags, MpiTeam& team, bool in_place) {
  const auto own = Pattern::of_rank(team.rank()), reduced = Pattern::reduced(team.size());
  for (const auto bytes : parse_sizes(flags.text("bytes"), flags.whole("factor"))) {
    const int64_t count = bytes / 4;
    const auto input = make_buffer(count), apart = make_buffer(in_place ? 1 : count);
    float* const output = in_place ? input.get() : apart.get();
    const auto fill = [&] { own.fill(input.get(), count); };
    const auto call = [&] {
      MPI_Allreduce(in_place ? MPI_IN_PLACE : input.get(), output, static_cast<int>(count),
                    MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    };
    auto row = row_of(flags, team);
    row.in_place = in_place;
    row.bytes = bytes;
    row.timing =
        measure(team, method_of(flags),
                in_place ? calls_before_overflow(team.size()) : kNeverOverflows, fill, call);
    fill();
    call();
    row.wrong = team.sum(reduced.count_wrong(output, count));
    if (team.rank() == 0) print(row);
  }
}

void scale(float* data, int64_t count, float factor) {
  for (int64_t i = 0; i < count; ++i) data[i] *= factor;
}

void copy_scaled(float* __restrict to, const float* __restrict from, int64_t count, float factor) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i] * factor;
}

/// A step over all gradients of a model, in which every tensor becomes the mean over the ranks.
/// Tensors are passed in the order of backward, last layer first.
class GradientStep {
 public:
  GradientStep(const std::string& set, int rank, int ranks)
      : own_(Pattern::of_rank(rank)),
        mean_(Pattern::reduced(ranks, 1.0F / static_cast<float>(ranks))),
        factor_(1.0F / static_cast<float>(ranks)) {
    for (const auto count : read_gradient_set(set)) {
      tensors_.insert(tensors_.begin(), Tensor{make_buffer(count), count});
      total_ += count;
    }
    requests_.resize(tensors_.size());
  }

  int64_t bytes() const { return total_ * 4; }

  void fill() {
    for (auto& tensor : tensors_) own_.fill(tensor.data.get(), tensor.count);
  }
  int64_t count_wrong() const {
    int64_t wrong = 0;
    for (const auto& tensor : tensors_) wrong += mean_.count_wrong(tensor.data.get(), tensor.count);
    return wrong;
  }

  void per_tensor() {
    for (auto& tensor : tensors_) reduce_in_place(tensor.data.get(), tensor.count);
  }

  void nonblocking() {
    for (size_t i = 0; i < tensors_.size(); ++i)
      MPI_Iallreduce(MPI_IN_PLACE, tensors_[i].data.get(), static_cast<int>(tensors_[i].count),
                     MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &requests_[i]);
    MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE);
    for (auto& tensor : tensors_) scale(tensor.data.get(), tensor.count, factor_);
  }

  /// Reduces the tensors through a buffer of `capacity` elements. A larger tensor is reduced in
  /// place, in pieces of that size, which is faster than copying it.
  void in_buckets(int64_t capacity) {
    if (bucket_capacity_ != capacity) {
      bucket_ = make_buffer(capacity);
      bucket_capacity_ = capacity;
    }
    size_t first = 0;
    int64_t used = 0;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const auto count = tensors_[i].count;
      if (used + count > capacity) {
        flush(first, i, used);
        first = i;
        used = 0;
      }
      if (count > capacity) {
        for (int64_t at = 0; at < count; at += capacity)
          reduce_in_place(tensors_[i].data.get() + at, std::min(capacity, count - at));
        first = i + 1;
        continue;
      }
      std::memcpy(bucket_.get() + used, tensors_[i].data.get(), static_cast<size_t>(count) * 4);
      used += count;
    }
    flush(first, tensors_.size(), used);
  }

  void fused() { in_buckets(total_); }

 private:
  struct Tensor {
    Buffer data;
    int64_t count = 0;
  };

  void reduce_in_place(float* data, int64_t count) {
    allreduce(data, count);
    scale(data, count, factor_);
  }

  void flush(size_t first, size_t last, int64_t used) {
    if (used == 0) return;
    allreduce(bucket_.get(), used);
    int64_t at = 0;
    for (size_t i = first; i < last; ++i) {
      copy_scaled(tensors_[i].data.get(), bucket_.get() + at, tensors_[i].count, factor_);
      at += tensors_[i].count;
    }
  }

  const Pattern own_, mean_;
  const float factor_;
  std::vector<Tensor> tensors_;
  std::vector<MPI_Request> requests_;
  Buffer bucket_;
  int64_t bucket_capacity_ = 0, total_ = 0;
};

void run_gradients(const Flags& flags, MpiTeam& team) {
  constexpr int64_t kBucket = 1 << 20;  // elements: 4 MiB
  const std::vector<std::pair<std::string, std::function<void(GradientStep&)>>> ways = {
      {"per_tensor", [](auto& step) { step.per_tensor(); }},
      {"nonblocking", [](auto& step) { step.nonblocking(); }},
      {"buckets4m", [](auto& step) { step.in_buckets(kBucket); }},
      {"fused", [](auto& step) { step.fused(); }}};
  const auto wanted = split_words(flags.text("way"));
  for (const auto& word : wanted)
    if (word != "all" &&
        std::none_of(ways.begin(), ways.end(), [&](const auto& way) { return way.first == word; }))
      throw std::invalid_argument("--way " + word + ": no such way");
  GradientStep step(flags.text("set"), team.rank(), team.size());
  for (const auto& [way, run] : ways) {
    if (flags.text("way") != "all" && std::find(wanted.begin(), wanted.end(), way) == wanted.end())
      continue;
    auto row = row_of(flags, team);
    row.way = way;
    row.set = set_name(flags.text("set"));
    row.bytes = step.bytes();
    // The mean of equal values is the same value, so the values never grow.
    row.timing = measure(
        team, method_of(flags), kNeverOverflows, [&] { step.fill(); },
        [&step, &run = run] { run(step); });
    step.fill();
    run(step);
    row.wrong = team.sum(step.count_wrong());
    if (team.rank() == 0) print(row);
  }
}

int run(int argc, char** argv) {
  const Flags flags(argc, argv,
                    {{"bytes", "4..64M"},
                     {"factor", "4"},
                     {"place", "both"},
                     {"set", ""},
                     {"way", "all"},
                     {"variant", "shipped"},
                     {"repetitions", "5"},
                     {"repetition-ms", "20"},
                     {"warmup", "1"},
                     {"cell-ms", "2000"},
                     {"deadline", "120"}});
  ::alarm(static_cast<unsigned>(flags.whole("deadline")));
  MpiTeam team;
  bind_to_core(team.rank());
  if (flags.case_name() == "allreduce") {
    if (flags.text("place") != "out") run_allreduce(flags, team, true);
    if (flags.text("place") != "in") run_allreduce(flags, team, false);
  } else if (flags.case_name() == "gradients") {
    run_gradients(flags, team);
  } else if (is_kind(flags.case_name())) {
    run_kind(flags, team);
  } else {
    throw std::invalid_argument("there is no case " + flags.case_name());
  }
  return 0;
}

}  // namespace

}  // namespace tutti::benchmarks

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  try {
    const int code = tutti::benchmarks::run(argc, argv);
    MPI_Finalize();
    return code;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    MPI_Abort(MPI_COMM_WORLD, 2);
    return 2;
  }
}
