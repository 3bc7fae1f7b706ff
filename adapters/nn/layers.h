#pragma once

#include <cstdint>
#include <memory>

#include "tutti/adapters/nn/layers/layer.h"
#include "tutti/kernels/layers/layer_shapes.h"

namespace tutti {
class Communicator;
}

namespace tutti::nn {

struct LinearOptions {
  bool bias = true;
  double deviation = 0;  // of normal weights at first; 0: uniform, as He et al. 2015
};
/// [batch, ..., inputs] to [batch, ..., outputs]: weight [outputs, inputs], bias [outputs].
std::unique_ptr<Layer> linear(int64_t inputs, int64_t outputs, const LinearOptions& options = {});

struct Conv2dOptions {
  int64_t stride = 1;
  int64_t padding = 0;
  bool bias = true;
};
/// [batch, in, h, w] to [batch, out, h', w']: weight [out, in, kernel, kernel], bias [out].
std::unique_ptr<Layer> conv2d(int64_t in, int64_t out, int64_t kernel,
                              const Conv2dOptions& options = {});
/// The same of [batch, in, depth, h, w], with weight [out, in, kernel, kernel, kernel].
std::unique_ptr<Layer> conv3d(int64_t in, int64_t out, int64_t kernel,
                              const Conv2dOptions& options = {});
/// stride 0: the kernel's size. The padding belongs to no maximum and no average.
std::unique_ptr<Layer> max_pool2d(int64_t kernel, int64_t stride = 0, int64_t padding = 0);
std::unique_ptr<Layer> average_pool2d(int64_t kernel, int64_t stride = 0, int64_t padding = 0);
/// [batch, channels, h, w] to the mean of each channel, [batch, channels].
std::unique_ptr<Layer> global_average_pool();

std::unique_ptr<Layer> relu();
std::unique_ptr<Layer> tanh();
std::unique_ptr<Layer> gelu();  // the form with tanh
/// Of each row of [batch, ..., classes].
std::unique_ptr<Layer> log_softmax();
/// In training, each element with `probability` becomes zero and the others are divided by
/// 1 - probability. The mask follows from the seed, the layer's name, the step and the element's
/// place in the joined batch, so it is the same on any number of ranks. Throws
/// Error(invalid_argument) for a probability outside of [0, 1).
std::unique_ptr<Layer> dropout(double probability);
/// The same values in f32, bf16 or f16: what follows works in that type, around arithmetic and
/// parameters in f32.
std::unique_ptr<Layer> cast_to(DataType dtype);

struct BatchNormOptions {
  double epsilon = 1e-5;
  double momentum = 0.1;  // of the new values in the running ones
  double initial_weight = 1;
};
/// Of [batch, channels, ...], per channel over all else. In evaluation by running values, which are
/// buffers of the model.
std::unique_ptr<Layer> batch_norm(int64_t channels, const BatchNormOptions& options = {});
/// The same over the batches of all ranks, whose sizes may differ or be zero: every rank makes the
/// same passes, all in training or all in evaluation. Gradients are those of the joined batch where
/// each rank's loss is divided alike; see Loss. The communicator must outlive the layer.
std::unique_ptr<Layer> sync_batch_norm(Communicator& comm, int64_t channels,
                                       const BatchNormOptions& options = {});
/// Of [batch, ..., features], per row.
std::unique_ptr<Layer> layer_norm(int64_t features, double epsilon = 1e-5);

struct EmbeddingOptions {
  int64_t positions = 0;  // above 0: a row for each place of [batch, length] is added
  double deviation = 0.02;
};
/// Indices i64[batch, ...] to rows of a table, f32[batch, ..., features]: weight [rows, features].
std::unique_ptr<Layer> embedding(int64_t rows, int64_t features,
                                 const EmbeddingOptions& options = {});
/// [batch, ..., features] times the table of an embedding, transposed: logits by the rows that
/// stand for the classes. The model must hold the embedding, before it.
std::unique_ptr<Layer> tied_linear(const Layer& embedding);
/// Queries, keys and values [batch, length, 3 * heads * width] to [batch, length, heads * width].
std::unique_ptr<Layer> attention(const AttentionOptions& options);

/// [batch, length, inputs] to the hidden values [batch, length, width] of every step, from zero on:
/// input_weight [gates * width, inputs], hidden_weight [gates * width, width], a bias each. The
/// order of the gates is Recurrence's.
std::unique_ptr<Layer> lstm(int64_t inputs, int64_t width);
std::unique_ptr<Layer> gru(int64_t inputs, int64_t width);

/// Pairs i64[batch, 2] of a row and a column to the element [batch, 1] of a matrix of low rank: the
/// product of the row's and the column's features plus a bias each (Koren et al. 2009).
std::unique_ptr<Layer> matrix_factorization(int64_t rows, int64_t columns, int64_t features);

/// What the body puts out plus what the shortcut does; without one, plus the input.
std::unique_ptr<Layer> residual(std::unique_ptr<Layer> body,
                                std::unique_ptr<Layer> shortcut = nullptr);
/// [batch, ...] to [batch, everything else].
std::unique_ptr<Layer> flatten();

}  // namespace tutti::nn
