// The optimizer step of a GPU, run by the host: the work of a block is a function that compiles for
// both. Blocks, and threads within a phase, run in any order here, as on a GPU.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "tests/kernels/kernel_test.h"
#include "tutti/adapters/nn/kernels/cuda/steps/step_tile.h"
#include "tutti/adapters/nn/kernels/optimizer_steps.h"
#include "tutti/kernels/convert.h"

namespace tutti {
namespace {

using cuda::StepControl;

std::vector<int> shuffled(int count, std::mt19937& random) {
  std::vector<int> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

bool have_equal_bits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// Parameters of many lengths with two arrays of state, some of them not aligned to 16 bytes.
class Parameters {
 public:
  Parameters(unsigned seed, bool has_first, bool has_second) : random_(seed) {
    for (const int64_t count : {1, 0, 3, 4, 5, 17, 1023, 4095, 4096, 4097, 20'003}) {
      auto& arrays = arrays_.emplace_back();
      const size_t shift = random_() % 4;
      for (auto& array : arrays) array.resize(static_cast<size_t>(count) + shift);
      for (size_t i = shift; i < arrays[0].size(); ++i) arrays[0][i] = uniform_(random_);
      tensors_.push_back({arrays[0].data() + shift, arrays[1].data() + shift,
                          has_first ? arrays[2].data() + shift : nullptr,
                          has_second ? arrays[3].data() + shift : nullptr, count, true});
    }
    tiles_ = cuda::step_tiles(tensors_);
    squares_.resize(tiles_.size());
  }

  void draw_gradients() {
    for (auto& tensor : tensors_)
      for (int64_t i = 0; i < tensor.count; ++i)
        const_cast<float*>(tensor.gradient)[i] = 3 * uniform_(random_);
  }
  const cuda::StepTensor& at(size_t i) const { return tensors_[i]; }
  size_t size() const { return tensors_.size(); }

  void find_norm(StepControl& control) {
    const auto table = this->table();
    double shared[cuda::kThreads];
    for (const int tile : shuffled(table.tile_count, random_))
      each_phase(
          [&](int thread, int phase) { cuda::squares_tile(table, tile, thread, phase, shared); });
    each_phase(
        [&](int thread, int phase) { cuda::settle_tile(table, control, thread, phase, shared); });
  }
  void step(const StepControl& control) {
    const auto table = this->table();
    for (const int tile : shuffled(table.tile_count, random_))
      for (const int thread : shuffled(cuda::kThreads, random_))
        cuda::step_tile(table, control, tile, thread, cuda::kThreads);
  }
  // Compares values and state bit by bit.
  void expect_equal(const Parameters& others) const {
    for (size_t i = 0; i < arrays_.size(); ++i)
      for (const size_t array : {0, 2, 3}) {
        const auto &here = arrays_[i][array], &there = others.arrays_[i][array];
        ASSERT_TRUE(
            std::equal(here.begin(), here.end(), there.begin(), there.end(), have_equal_bits))
            << "array " << array << " of parameter " << i;
      }
  }

 private:
  cuda::StepTable table() {
    return {tensors_.data(), tiles_.data(), squares_.data(), static_cast<int32_t>(tiles_.size())};
  }
  void each_phase(const std::function<void(int, int)>& run) {
    for (int phase = 0; phase <= cuda::kSumPhases; ++phase)
      for (const int thread : shuffled(cuda::kThreads, random_)) run(thread, phase);
  }

  std::mt19937 random_;
  std::uniform_real_distribution<float> uniform_{-1, 1};
  std::vector<std::array<std::vector<float>, 4>> arrays_;
  std::vector<cuda::StepTensor> tensors_;
  std::vector<cuda::StepTile> tiles_;
  std::vector<double> squares_;
};

struct Arrays {
  std::span<float> value, gradient, first, second;
};

// Takes steps with the device's code and with the CPU's, which is called for each parameter.
void compare(StepKind kind, bool has_first, bool has_second,
             const std::function<StepFactors(int64_t)>& factors,
             const std::function<void(const Arrays&, int64_t)>& cpu_step) {
  Parameters device(7, has_first, has_second), host(7, has_first, has_second);
  for (int64_t t = 1; t <= 5; ++t) {
    device.draw_gradients();
    for (size_t i = 0; i < host.size(); ++i)
      std::copy_n(device.at(i).gradient, host.at(i).count, const_cast<float*>(host.at(i).gradient));
    StepControl control;
    control.kind = kind;
    control.factors = factors(t);
    control.gradient_factor = 1.0 / 48;
    control.clip = t % 2 == 0 ? 0.5 : 0;
    device.find_norm(control);
    ASSERT_FALSE(control.is_skipped);
    device.step(control);
    double sum = 0;
    for (size_t i = 0; i < host.size(); ++i) {
      const auto& tensor = host.at(i);
      for (int64_t k = 0; k < tensor.count; ++k) sum += std::pow(double{tensor.gradient[k]}, 2);
    }
    const double norm = std::sqrt(sum) / 48;
    EXPECT_NEAR(control.norm, norm, 1e-12 * norm);
    const double multiplier =
        control.clip > 0 ? control.gradient_factor * control.clip / control.norm : 1.0 / 48;
    EXPECT_GT(control.norm, control.clip);
    for (size_t i = 0; i < host.size(); ++i) {
      const auto& tensor = host.at(i);
      const auto count = static_cast<size_t>(tensor.count);
      const std::span gradient(const_cast<float*>(tensor.gradient), count);
      scale(DataType::f32, reinterpret_cast<std::byte*>(gradient.data()), tensor.count,
            {multiplier, 1});
      const auto state = [&](float* data) { return std::span(data, data ? count : 0); };
      cpu_step({{tensor.value, count}, gradient, state(tensor.first), state(tensor.second)}, t);
    }
    device.expect_equal(host);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(GpuSteps, SgdEqualsTheCpus) {
  for (const float momentum : {0.0f, 0.9f})
    for (const float decay : {0.0f, 0.05f})
      for (const bool nesterov : {false, true}) {
        const SgdSettings settings{0.1f, momentum, decay, nesterov};
        compare(
            StepKind::sgd, momentum != 0, false, [&](int64_t) { return factors_of(settings); },
            [&](const Arrays& a, int64_t) { sgd_step(settings, a.value, a.gradient, a.first); });
      }
}

TEST(GpuSteps, AdamAndAdamWEqualTheCpus) {
  for (const bool decoupled : {false, true})
    for (const double decay : {0.0, 0.05}) {
      AdamSettings settings{1e-2, 0.9, 0.999, 1e-8, decay, decoupled, 1};
      const auto at = [&](int64_t t) {
        settings.step = t;
        return settings;
      };
      compare(
          StepKind::adam, true, true, [&](int64_t t) { return factors_of(at(t)); },
          [&](const Arrays& a, int64_t t) {
            adam_step(at(t), a.value, a.gradient, a.first, a.second);
          });
    }
}

TEST(GpuSteps, RmsPropEqualsTheCpus) {
  for (const float momentum : {0.0f, 0.9f}) {
    const RmsPropSettings settings{1e-2f, 0.99f, 1e-8f, momentum, 0.05f};
    compare(
        StepKind::rms_prop, true, momentum != 0, [&](int64_t) { return factors_of(settings); },
        [&](const Arrays& a, int64_t) {
          rms_prop_step(settings, a.value, a.gradient, a.first, a.second);
        });
  }
}

TEST(GpuSteps, TheNormIsTheSameInAnyOrder) {
  Parameters parameters(3, true, true);
  parameters.draw_gradients();
  StepControl first, again;
  parameters.find_norm(first);
  for (int round = 0; round < 5; ++round) {
    parameters.find_norm(again);
    EXPECT_EQ(std::memcmp(&first.norm, &again.norm, sizeof first.norm), 0);
  }
}

TEST(GpuSteps, AGradientThatIsNoNumberSkipsTheStep) {
  for (const float strange :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    const size_t last = Parameters(5, true, true).size() - 1;
    for (const auto& [tensor, element] :
         std::vector<std::pair<size_t, int64_t>>{{0, 0}, {6, 1022}, {last, 20'002}}) {
      Parameters parameters(5, true, true);
      const Parameters before(5, true, true);
      parameters.draw_gradients();
      const_cast<float*>(parameters.at(tensor).gradient)[element] = strange;
      StepControl control;
      control.kind = StepKind::adam;
      control.factors = factors_of(AdamSettings{.learning_rate = 0.1});
      parameters.find_norm(control);
      EXPECT_TRUE(control.is_skipped);
      parameters.step(control);
      parameters.expect_equal(before);
      // The largest finite numbers are not infinite.
      const_cast<float*>(parameters.at(tensor).gradient)[element] = 3e38f;
      parameters.find_norm(control);
      EXPECT_FALSE(control.is_skipped);
    }
  }
}

TEST(GpuSteps, NoParametersHaveTheNormZero) {
  StepControl control;
  double shared[cuda::kThreads];
  for (int phase = 0; phase <= cuda::kSumPhases; ++phase)
    for (int thread = 0; thread < cuda::kThreads; ++thread)
      cuda::settle_tile({}, control, thread, phase, shared);
  EXPECT_EQ(control.norm, 0);
  EXPECT_FALSE(control.is_skipped);
}

}  // namespace
}  // namespace tutti
