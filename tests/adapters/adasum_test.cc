#include "tutti/adapters/exchange/adasum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace tutti::test {
namespace {

using Vector = std::vector<double>;

double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Computes Adasum directly from its definition, with the same tree of pairs.
Vector plain_adasum(const std::vector<Vector>& vectors) {
  if (vectors.size() == 1) return vectors[0];
  const auto middle = vectors.begin() + static_cast<std::ptrdiff_t>((vectors.size() + 1) / 2);
  const auto a = plain_adasum({vectors.begin(), middle});
  const auto b = plain_adasum({middle, vectors.end()});
  const double ab = dot(a, b), aa = dot(a, a), bb = dot(b, b);
  Vector sum(a.size());
  for (size_t i = 0; i < a.size(); ++i)
    sum[i] = a[i] * (aa == 0 ? 1 : 1 - ab / (2 * aa)) + b[i] * (bb == 0 ? 1 : 1 - ab / (2 * bb));
  return sum;
}

// Combines two tensors, so that the borders between ranks' shares fall within and between them.
std::vector<float> combine_on(Communicator& comm, const std::vector<float>& own, size_t cut) {
  std::vector<float> first(own.begin(), own.begin() + static_cast<std::ptrdiff_t>(cut));
  std::vector<float> second(own.begin() + static_cast<std::ptrdiff_t>(cut), own.end());
  Adasum adasum(comm, "test", {TensorView(first), TensorView(second)});
  adasum.combine();
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

TEST(Adasum, AddsWhatIsOrthogonal) {
  for (int size = 2; size <= 5; ++size)
    run_threads(size, [](Communicator& comm) {
      std::vector<float> own(20, 0.0F);
      const auto place = static_cast<size_t>(comm.rank());
      own[place] = static_cast<float>(comm.rank() + 2);                // in the first tensor
      own[10 + place] = -0.25F * static_cast<float>(comm.rank() + 1);  // in the second
      const auto got = combine_on(comm, own, 10);
      for (int rank = 0; rank < comm.size(); ++rank) {
        EXPECT_EQ(got[static_cast<size_t>(rank)], static_cast<float>(rank + 2));
        EXPECT_EQ(got[static_cast<size_t>(10 + rank)], -0.25F * static_cast<float>(rank + 1));
      }
    });
}

// The first tensor is parallel on all ranks and must be averaged; the second is orthogonal and must
// be added up.
TEST(Adasum, CombinesEachTensorByItself) {
  for (int size = 2; size <= 5; ++size)
    run_threads(size, [](Communicator& comm) {
      std::vector<float> own(20, 0.0F);
      std::fill(own.begin(), own.begin() + 10, 1.5F);  // the first tensor, equal on all ranks
      own[10 + static_cast<size_t>(comm.rank())] = static_cast<float>(comm.rank() + 1);
      const auto got = combine_on(comm, own, 10);
      for (size_t i = 0; i < 10; ++i) EXPECT_EQ(got[i], 1.5F) << i;
      for (int rank = 0; rank < comm.size(); ++rank)
        EXPECT_EQ(got[static_cast<size_t>(10 + rank)], static_cast<float>(rank + 1));
    });
}

// All ranks have multiples of one vector. Each pair of the tree averages, which gives the mean of
// all ranks if both halves have the same number of ranks.
TEST(Adasum, AveragesWhatIsParallel) {
  const std::vector<Vector> weights = {{},
                                       {},
                                       {0.5, 0.5},
                                       {0.25, 0.25, 0.5},
                                       {0.25, 0.25, 0.25, 0.25},
                                       {0.125, 0.125, 0.25, 0.25, 0.25}};
  for (int size = 2; size <= 5; ++size)
    run_threads(size, [&](Communicator& comm) {
      const auto multiple = [](int rank) { return static_cast<float>(1 << rank); };
      std::vector<float> own(20);
      for (size_t i = 0; i < own.size(); ++i)
        own[i] = multiple(comm.rank()) * static_cast<float>(i + 1);
      const auto got = combine_on(comm, own, 7);
      double factor = 0;
      for (int rank = 0; rank < size; ++rank)
        factor += weights[static_cast<size_t>(size)][static_cast<size_t>(rank)] *
                  static_cast<double>(multiple(rank));
      for (size_t i = 0; i < own.size(); ++i)
        EXPECT_NEAR(got[i], factor * static_cast<double>(i + 1), 1e-6 * factor * 20) << i;
    });
}

TEST(Adasum, IsWhatTheDefinitionSays) {
  for (int size = 1; size <= 7; ++size)
    run_threads(size, [](Communicator& comm) {
      for (const size_t count : {size_t{0}, size_t{3}, size_t{101}}) {
        const size_t cut = count / 3;
        std::vector<Vector> first, second;
        std::vector<float> own;
        for (int rank = 0; rank < comm.size(); ++rank) {
          std::mt19937 random(static_cast<unsigned>(rank) + 1);
          std::normal_distribution<float> normal(0.5F);
          std::vector<float> values(count);
          for (auto& value : values) value = normal(random);
          const auto middle = values.begin() + static_cast<std::ptrdiff_t>(cut);
          first.emplace_back(values.begin(), middle);
          second.emplace_back(middle, values.end());
          if (rank == comm.rank()) own = values;
        }
        auto expected = plain_adasum(first);
        const auto rest = plain_adasum(second);
        expected.insert(expected.end(), rest.begin(), rest.end());
        const auto got = combine_on(comm, own, cut);
        ASSERT_EQ(got.size(), expected.size());
        for (size_t i = 0; i < count; ++i)
          EXPECT_NEAR(got[i], expected[i], 1e-5 * (1 + std::abs(expected[i])))
              << "element " << i << " on " << comm.size() << " ranks";
      }
    });
}

// Covers a zero vector, and vectors whose squares underflow to zero in a double.
TEST(Adasum, AddsUpWhatIsTooShortToDivideBy) {
  run_threads(2, [](Communicator& comm) {
    Vector none(3, comm.rank() == 0 ? 0.0 : 2.5), tiny(3, 1e-170), short_ones(1, 1e-80);
    Adasum adasum(comm, "test", {TensorView(none), TensorView(tiny), TensorView(short_ones)});
    adasum.combine();
    EXPECT_EQ(none, Vector(3, 2.5));
    EXPECT_EQ(tiny, Vector(3, 2e-170));
    EXPECT_EQ(short_ones, Vector(1, 2e-80));
  });
}

// A square that overflows a double must not spoil the other ranks' orthogonal vectors.
TEST(Adasum, AnInfiniteSquareStaysOnItsSide) {
  for (int size = 2; size <= 5; ++size)
    run_threads(size, [](Communicator& comm) {
      Vector own(static_cast<size_t>(comm.size()), 0.0);
      const auto length_of = [&](int rank) { return rank == comm.size() - 1 ? 1e200 : rank + 1.0; };
      own[static_cast<size_t>(comm.rank())] = length_of(comm.rank());
      Adasum adasum(comm, "test", {TensorView(own)});
      adasum.combine();
      for (int rank = 0; rank < comm.size(); ++rank)
        EXPECT_EQ(own[static_cast<size_t>(rank)], length_of(rank));
    });
}

// Adasum sends as many elements as an allreduce, 2 (n - 1) / n of them. For each tensor it also
// reduces n (n + 1) / 2 dot products of 8 bytes.
TEST(Adasum, SendsWhatTheFormulaSays) {
  run_threads(
      2,
      [](Communicator& comm) {
        const std::vector<float> own(1000, 1.0F);
        combine_on(comm, own, 400);
        comm.barrier_blocking();
        const auto before = comm.statistics().data_bytes;
        combine_on(comm, own, 400);
        EXPECT_EQ(comm.statistics().data_bytes - before, 1000U * 4 + 2U * 3 * 8);
      },
      [](Options& options) { options.backend = "tcp"; });
}

TEST(Adasum, WantsOneType) {
  run_threads(1, [](Communicator& comm) {
    std::vector<float> first(3);
    std::vector<double> second(3);
    EXPECT_THAT(error_of([&] {
                  Adasum(comm, "test", {TensorView(first), TensorView(second)});
                }).what(),
                testing::HasSubstr("Adasum combines tensors of one type, got f32 and f64"));
  });
}

TEST(Adasum, WantsFloatsInHostMemory) {
  run_threads(1, [](Communicator& comm) {
    const Tensor halves(Shape{4}, DataType::f16);
    float values[4] = {};
    const TensorView elsewhere(values, Shape{4}, DataType::f32, Device{DeviceKind::fake, 0});
    for (const auto& [tensor, text] :
         {std::pair{halves.view(), "f16 on cpu"}, {elsewhere, "f32 on fake:0"}})
      expect_error(ErrorCode::invalid_argument,
                   std::string("in host memory, got ") + text + "; average them instead",
                   [&, view = tensor] { Adasum(comm, "a", {view}); });
  });
}

}  // namespace
}  // namespace tutti::test
