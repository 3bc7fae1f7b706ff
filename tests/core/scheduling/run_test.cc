// A run by itself: what it gives its backend to work on. Nothing is moved here.

#include "tutti/core/scheduling/run.h"

#include <gtest/gtest.h>

#include "tests/backends/support/forwarding_backend.h"
#include "tests/backends/support/world.h"
#include "tests/support/idle_driver.h"

namespace tutti {
namespace {

/// Its operations are over at once, and it remembers the last one.
class Remembers final : public test::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  OperationPtr start(const Collective& collective, const Launch&) override {
    input = collective.input;
    output = collective.output;
    return nullptr;
  }
  const std::byte* input = nullptr;
  const std::byte* output = nullptr;
};

// What the root, rank 0 of three, gives its backend if its input is row `row` of its output.
void gather_from_row(CollectiveKind kind, size_t row) {
  SCOPED_TRACE(testing::Message() << to_string(kind) << " of row " << row);
  constexpr int kSize = 3;
  Remembers backend(std::move(test::make_backends(find_backend("memory"), 1)[0]));
  RegionPool pool(backend);
  std::vector<float> all{0, 0, 1, 1, 2, 2};
  Entry entry;
  entry.output = TensorView(all);
  entry.input = TensorView(std::span(all).subspan(2 * row, 2));
  entry.work = std::make_shared<WorkState>(std::make_shared<test::IdleDriver>(), "x", 1);
  entry.request.signature.kind = kind;
  entry.request.signature.shape = Shape{1, 2};
  Response response;
  response.signature = entry.request.signature;
  response.rows = {1, 1, 1};
  auto run = Run::moved(1, pool, {&response, 1}, {}, {&entry}, 0, kSize);
  run->start(backend, 0, 0, {});
  EXPECT_EQ(backend.output, entry.output.data());
  if (row == 0) {
    EXPECT_EQ(backend.input, entry.input.data()) << "it lies where it belongs";
    return;
  }
  // Other ranks' rows are written there, before this rank's row was read.
  EXPECT_NE(backend.input, entry.input.data());
  const auto* copied = reinterpret_cast<const float*>(backend.input);
  EXPECT_EQ(copied[0], static_cast<float>(row));
  EXPECT_EQ(copied[1], static_cast<float>(row));
}

TEST(MovedRun, AnInputAtAnotherRowOfTheOutputIsKeptApart) {
  for (const auto kind : {CollectiveKind::gather, CollectiveKind::allgather})
    for (const size_t row : {0, 1, 2}) gather_from_row(kind, row);
}

}  // namespace
}  // namespace tutti
