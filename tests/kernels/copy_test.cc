#include "tutti/kernels/copy.h"

#include <algorithm>

#include "tests/kernels/kernel_test.h"

namespace tutti {
namespace {

class CopyPastCaches : public OnEveryTarget {};
TUTTI_ON_EVERY_TARGET(CopyPastCaches);

TEST_P(CopyPastCaches, WritesEveryByteAndNoOther) {
  constexpr size_t kMargin = 128;
  for (const size_t bytes : {0U, 1U, 63U, 64U, 65U, 127U, 128U, 1000U, 4096U, 70'001U}) {
    for (const size_t from : {0U, 1U, 8U, 63U}) {
      for (const size_t to : {0U, 1U, 4U, 32U, 63U}) {
        std::vector<std::byte> input(from + bytes + kMargin), output(bytes + 3 * kMargin);
        for (size_t i = 0; i < input.size(); ++i)
          input[i] = static_cast<std::byte>(i * 37 + i / 251);
        const auto before = output;
        auto* begin = output.data() + kMargin + to;
        copy_past_caches(begin, input.data() + from, bytes);
        auto expected = before;
        std::copy_n(input.begin() + static_cast<std::ptrdiff_t>(from), bytes,
                    expected.begin() + static_cast<std::ptrdiff_t>(kMargin + to));
        ASSERT_TRUE(output == expected) << bytes << " bytes from " << from << " to " << to;
      }
    }
  }
}

}  // namespace
}  // namespace tutti
