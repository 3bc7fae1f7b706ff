// The arithmetic of the CUDA plugin's reducing kernel, run by the host and compared with the CPU's
// reference.

#include "tests/kernels/kernel_test.h"
#include "tutti/kernels/cuda/pack/reduce_tile.h"

namespace tutti {
namespace {

constexpr uint64_t kSeed = 20261125;

void run_reduction(const DeviceReduction& reduction) {
  constexpr int kThreads = 7;
  const auto table = cuda::make_reduce_table(reduction);
  for (int64_t tile = 0; tile < cuda::reduce_tiles(reduction.count); ++tile)
    for (int thread = 0; thread < kThreads; ++thread)
      cuda::reduce_tile(table, tile, thread, kThreads);
}

class CudaReduce : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(Types, CudaReduce, testing::ValuesIn(kAllTypes),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST_P(CudaReduce, EqualsReferenceToTheBit) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  const auto dtype = GetParam();
  for (const ReduceOp op : kAllOps) {
    if (op == ReduceOp::average || !can_reduce(dtype, op)) continue;
    for (const int ranks : {1, 2, 3, 8, 64})
      for (const int64_t count : {0, 1, 7, 16, 33, 1000, 4097})
        for (const Scale scale : {Scale{}, {0.37, 3}, {-1.5, 1}, {1.0, 5}})
          for (const bool aligned : {true, false}) {
            if (count > 1000 && ranks > 8) continue;
            std::vector<Buffer> inputs, outputs;
            std::vector<const std::byte*> from;
            std::vector<std::byte*> to;
            const auto shift = [&] {
              return aligned ? 0 : random() % 5 * static_cast<size_t>(size_of(dtype));
            };
            for (int rank = 0; rank < ranks; ++rank) {
              inputs.emplace_back(dtype, count, shift());
              fill_randomly(inputs.back(), random);
              from.push_back(inputs.back().data());
              outputs.emplace_back(dtype, count, shift());
              to.push_back(outputs.back().data());
            }
            Buffer expected(dtype, count);
            reduce_reference(dtype, op, expected.data(), from, count, scale);
            // Some outputs are inputs.
            if (ranks > 1) to[1] = inputs[1].data();
            run_reduction({from, to, count, dtype, op, scale});
            for (const auto* output : to)
              ASSERT_EQ(first_difference(dtype, output, expected.data(), count), -1)
                  << to_string(op) << ", " << ranks << " ranks, " << count << " elements, scale "
                  << scale.factor << '/' << scale.divisor;
          }
  }
}

}  // namespace
}  // namespace tutti
