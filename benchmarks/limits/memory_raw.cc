// Measures sums of several inputs and plain copies, on each rank by itself. The ratio compares the
// bytes that a sum and the fastest copy move in the same time.
#include <array>
#include <cstring>

#include "benchmarks/common/pairs.h"
#include "benchmarks/common/program.h"
#include "benchmarks/common/sizes.h"
#include "benchmarks/limits/streams.h"
#include "tutti/kernels/convert.h"
#include "tutti/kernels/reduce.h"

namespace tutti::benchmarks {

namespace {

constexpr int64_t kFloatsPerLine = 16;
constexpr size_t kMostInputs = 4;

struct Copy {
  const char* name;
  void (*loop)(float* to, const float* from, int64_t count);
};
// It depends on the machine which of these copies is the fastest.
constexpr Copy kCopies[] = {
    {"copy", copy},
    {"copy_nt", copy_nt},
    {"copy_nt_ahead", copy_nt_ahead},
    {"memcpy",
     [](float* to, const float* from, int64_t count) {
       std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
     }},
};

struct Buffers {
  explicit Buffers(int64_t bytes)
      : floats((bytes / 4 + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine),
        output(make_buffer(floats)) {
    for (auto& input : inputs) input = make_buffer(floats);
  }
  int64_t count_of(DataType dtype) const { return floats * 4 / size_of(dtype); }
  static std::byte* bytes_of(const Buffer& buffer) {
    return reinterpret_cast<std::byte*>(buffer.get());
  }

  const int64_t floats;  // of each
  Buffer output;
  std::array<Buffer, kMostInputs> inputs;
};

const Copy& find_fastest(ForkTeam& team, const Buffers& buffers) {
  constexpr int kRounds = 5;
  std::array<std::vector<double>, std::size(kCopies)> times;
  for (int round = 0; round <= kRounds; ++round) {
    for (size_t i = 0; i < std::size(kCopies); ++i) {
      team.barrier();
      const double begin = now_us();
      kCopies[i].loop(buffers.output.get(), buffers.inputs[0].get(), buffers.floats);
      const double lasted = team.max(now_us() - begin);
      if (round > 0) times[i].push_back(lasted);
    }
  }
  size_t fastest = 0;
  for (size_t i = 1; i < times.size(); ++i)
    if (median(times[i]) < median(times[fastest])) fastest = i;
  return kCopies[fastest];
}

// fill() writes one rank's pattern into each input, converted to the dtype. count_wrong() counts
// the wrong elements of the sum. Every dtype here holds the whole numbers exactly.
constexpr int64_t kPiece = Pattern::kPeriod * 2;

void fill(const Buffers& buffers, DataType dtype, int inputs) {
  std::vector<float> piece(kPiece);
  const int64_t count = buffers.count_of(dtype);
  for (int j = 0; j < inputs; ++j) {
    Pattern::of_rank(j).fill(piece.data(), kPiece);
    auto* to = Buffers::bytes_of(buffers.inputs[static_cast<size_t>(j)]);
    for (int64_t i = 0; i < count; i += kPiece)
      cast(DataType::f32, reinterpret_cast<const std::byte*>(piece.data()), dtype,
           to + i * size_of(dtype), std::min(kPiece, count - i));
  }
}

int64_t count_wrong(const Buffers& buffers, DataType dtype, int inputs) {
  std::vector<float> piece(kPiece);
  const auto sums = Pattern::reduced(inputs);
  const int64_t count = buffers.count_of(dtype);
  int64_t wrong = 0;
  for (int64_t i = 0; i < count; i += kPiece) {
    const int64_t part = std::min(kPiece, count - i);
    cast(dtype, Buffers::bytes_of(buffers.output) + i * size_of(dtype), DataType::f32,
         reinterpret_cast<std::byte*>(piece.data()), part);
    wrong += sums.count_wrong(piece.data(), part);
  }
  return wrong;
}

void run_sums(const Flags& flags, ForkTeam& team) {
  for (const auto bytes : parse_sizes(flags.text("bytes"), flags.whole("factor"))) {
    const Buffers buffers(bytes);
    const Copy& fastest = find_fastest(team, buffers);
    for (const auto dtype : {DataType::f32, DataType::f16, DataType::bf16}) {
      for (const int inputs : {2, 4}) {
        fill(buffers, dtype, inputs);
        std::vector<const std::byte*> from;
        for (int j = 0; j < inputs; ++j)
          from.push_back(Buffers::bytes_of(buffers.inputs[static_cast<size_t>(j)]));
        const auto ours = [&] {
          reduce(dtype, ReduceOp::sum, Buffers::bytes_of(buffers.output), from,
                 buffers.count_of(dtype));
        };
        std::memset(buffers.output.get(), 0xee, static_cast<size_t>(buffers.floats) * 4);
        ours();
        const int64_t wrong = count_wrong(buffers, dtype, inputs);
        auto row = measure_pairs(team, flags, ours, [&] {
          fastest.loop(buffers.output.get(), buffers.inputs[0].get(), buffers.floats);
        });
        // The ratio counts bytes and not calls. A copy moves twice its size.
        for (const char* name : {"ratio", "ratio_low", "ratio_high"})
          row.numbers[name] *= (inputs + 1) / 2.0;
        row.case_name = "sums";
        row.way = "vectorised";
        row.in_place = false;
        row.dtype = to_string(dtype);
        row.bytes = buffers.floats * 4;
        row.transport = "memory";
        row.numbers["inputs"] = inputs;
        row.numbers["moved_gb_per_s"] =
            static_cast<double>((inputs + 1) * row.bytes * team.size()) / row.timing.median_us /
            1000;
        row.words["limit"] = fastest.name;
        row.wrong = team.sum(wrong);
        if (team.rank() == 0) print(row);
      }
    }
  }
}

int run(int argc, char** argv) {
  auto defaults = pair_flags();
  defaults["ranks"] = "1";
  defaults["bind"] = "1";
  const Flags flags(argc, argv, defaults);
  if (flags.case_name() != "sums")
    throw std::invalid_argument("the case is sums, not " + flags.case_name());
  return ForkTeam::run(flags.whole("ranks"), {}, static_cast<unsigned>(flags.whole("deadline")),
                       flags.whole("bind") != 0, [&](ForkTeam& team) { run_sums(flags, team); });
}

}  // namespace

}  // namespace tutti::benchmarks

int main(int argc, char** argv) {
  return tutti::benchmarks::run_program(tutti::benchmarks::run, argc, argv);
}
