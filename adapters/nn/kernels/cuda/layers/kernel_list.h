#pragma once

// All kernels of layers and steps, and the interface that launches them.

#include <cstddef>
#include <tuple>
#include <type_traits>

#include "tutti/adapters/nn/kernels/cuda/layers/channels.h"
#include "tutti/adapters/nn/kernels/cuda/layers/elements.h"
#include "tutti/adapters/nn/kernels/cuda/layers/rows.h"
#include "tutti/adapters/nn/kernels/cuda/layers/sequences.h"
#include "tutti/adapters/nn/kernels/cuda/layers/windows.h"
#include "tutti/adapters/nn/kernels/cuda/steps/layer_step_tile.h"
#include "tutti/adapters/nn/kernels/cuda/steps/step_tile.h"
#include "tutti/tensor/device.h"

namespace tutti::cuda {

template <class... Kernel>
struct Kernels {
  static constexpr size_t kCount = sizeof...(Kernel);
  template <class One>
  static constexpr size_t index_of() {
    size_t index = 0, at = 0;
    ((std::is_same_v<One, Kernel> ? index = at++ : at++), ...);
    static_assert((std::is_same_v<One, Kernel> || ...), "a kernel that is in no list");
    return index;
  }
};

template <class... Lists>
struct Joined;
template <class... A>
struct Joined<Kernels<A...>> {
  using List = Kernels<A...>;
};
template <class... A, class... B, class... Rest>
struct Joined<Kernels<A...>, Kernels<B...>, Rest...> {
  using List = typename Joined<Kernels<A..., B...>, Rest...>::List;
};

/// The kernels of one storage type.
template <class T>
using KernelsOf =
    Kernels<CastElements<T, float>, CastElements<T, BFloat16>, CastElements<T, Float16>,
            AddElements<T, float>, AddElements<T, BFloat16>, AddElements<T, Float16>, AddBias<T>,
            ActivationForward<T>, ActivationBackward<T>, Dropout<T>, RowProductsBackward<T>,
            GlobalAverageBackward<T>, SoftmaxForward<T, T>, CrossEntropyBackward<T>,
            LogSoftmaxBackward<T>, LikelihoodForward<T>, LikelihoodBackward<T>, RowSums<T, T>,
            SquaredErrorBackward<T>, LayerNormForward<T>, LayerNormBackward<T>, ColumnSums<T>,
            BatchNormSums<T>, BatchNormForward<T>, BatchNormBackward<T>, ChannelSums<T>,
            PoolingForward<T>, PoolingBackward<T>, EmbeddingForward<T>, EmbeddingBackward<T>,
            AttentionShares<T>, AttentionSlopes<T>>;

using AllKernels =
    Joined<KernelsOf<float>, KernelsOf<BFloat16>, KernelsOf<Float16>,
           Kernels<SoftmaxForward<BFloat16, float>, SoftmaxForward<Float16, float>,
                   RowSums<BFloat16, float>, RowSums<Float16, float>, BatchNormMoments,
                   BatchNormStatistics, ColumnTotals, BatchNormWeights, ZeroElements,
                   GradientSquares, SettleStep, ScaleGradients, StepParameters, LayerSquares,
                   LayerRates, LayerParameters>>::List;

/// Launches kernels on streams of one device: with CUDA on a GPU, as host functions in the tests.
class Launcher {
 public:
  Launcher() = default;
  virtual ~Launcher() = default;
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  /// Throws Error if the driver rejects the launch.
  template <class Kernel>
  void launch(const Kernel& kernel, StreamRef stream) {
    static_assert(std::is_trivially_copyable_v<Kernel>);
    if (const int64_t blocks = kernel.blocks(); blocks > 0)
      put(AllKernels::index_of<Kernel>(), &kernel, blocks, stream);
  }

 private:
  virtual void put(size_t index, const void* kernel, int64_t blocks, StreamRef stream) = 0;
};

}  // namespace tutti::cuda
