// Reference loops of normalisation and attention.

#include <cmath>

#include "tests/nn/reference/layer_reference.h"

namespace tutti::reference {
namespace {

// Normalises groups of elements that share mean and variance. `group_of` and `weight_of` return the
// index of an element's group and of its weight.
template <class Group, class Weight>
struct Normal {
  Normal(size_t groups, double epsilon, const Values& input, Group group_of, Weight weight_of)
      : group_of_(group_of),
        weight_of_(weight_of),
        input_(input),
        counts_(groups),
        means_(groups),
        inverses_(groups) {
    for (size_t i = 0; i < input.size(); ++i) {
      counts_[group_of(i)] += 1;
      means_[group_of(i)] += input[i];
    }
    for (size_t g = 0; g < groups; ++g) means_[g] /= counts_[g];
    for (size_t i = 0; i < input.size(); ++i) {
      const double difference = input[i] - means_[group_of(i)];
      inverses_[group_of(i)] += difference * difference;
    }
    for (size_t g = 0; g < groups; ++g)
      inverses_[g] = 1 / std::sqrt(inverses_[g] / counts_[g] + epsilon);
  }

  double normal(size_t i) const {
    return (input_[i] - means_[group_of_(i)]) * inverses_[group_of_(i)];
  }

  Values forward(const Values& weight, const Values& bias) const {
    Values output(input_.size());
    for (size_t i = 0; i < output.size(); ++i)
      output[i] = normal(i) * weight[weight_of_(i)] + bias[weight_of_(i)];
    return output;
  }

  WeightedGradients backward(const Values& weight, const Values& dy) const {
    WeightedGradients d{Values(input_.size()), Values(weight.size()), Values(weight.size())};
    Values sums(means_.size()), products(means_.size());
    for (size_t i = 0; i < dy.size(); ++i) {
      const double gradient = dy[i] * weight[weight_of_(i)];
      d.bias[weight_of_(i)] += dy[i];
      d.weight[weight_of_(i)] += dy[i] * normal(i);
      sums[group_of_(i)] += gradient;
      products[group_of_(i)] += gradient * normal(i);
    }
    for (size_t i = 0; i < dy.size(); ++i) {
      const size_t g = group_of_(i);
      d.input[i] = inverses_[g] * (dy[i] * weight[weight_of_(i)] - sums[g] / counts_[g] -
                                   normal(i) * products[g] / counts_[g]);
    }
    return d;
  }

 private:
  const Group group_of_;
  const Weight weight_of_;
  const Values& input_;
  Values counts_, means_, inverses_;
};

auto batch_normal(const ChannelsShape& s, double epsilon, const Values& input) {
  const auto channel = [channels = static_cast<size_t>(s.channels),
                        positions = static_cast<size_t>(s.positions)](size_t i) {
    return i / positions % channels;
  };
  return Normal(static_cast<size_t>(s.channels), epsilon, input, channel, channel);
}

auto layer_normal(int64_t features, double epsilon, const Values& input) {
  const auto width = static_cast<size_t>(features);
  return Normal(
      input.size() / width, epsilon, input, [width](size_t i) { return i / width; },
      [width](size_t i) { return i % width; });
}

// Offsets of one head's rows in `packed` and in the output.
struct HeadOffsets {
  size_t length, width, features, packed, output;
  size_t query(size_t i) const { return packed + i * 3 * features; }
  size_t key(size_t j) const { return query(j) + features; }
  size_t value(size_t j) const { return query(j) + 2 * features; }
  size_t result(size_t i) const { return output + i * features; }
};

template <class Body>
void for_each_head_of(const AttentionShape& s, Body body) {
  const auto heads = static_cast<size_t>(s.options.heads), width = static_cast<size_t>(s.width),
             length = static_cast<size_t>(s.length);
  for (size_t n = 0; n < static_cast<size_t>(s.batch); ++n)
    for (size_t h = 0; h < heads; ++h)
      body(HeadOffsets{length, width, heads * width, n * length * 3 * heads * width + h * width,
                       n * length * heads * width + h * width});
}

// Returns the softmax of query i over the keys it sees.
Values softmax_row(const AttentionShape& s, const HeadOffsets& head, const Values& packed,
                   size_t i) {
  Values row(s.options.causal ? i + 1 : head.length);
  double sum = 0;
  for (size_t j = 0; j < row.size(); ++j) {
    double score = 0;
    for (size_t k = 0; k < head.width; ++k)
      score += packed[head.query(i) + k] * packed[head.key(j) + k];
    row[j] = std::exp(score / std::sqrt(static_cast<double>(head.width)));
    sum += row[j];
  }
  for (double& value : row) value /= sum;
  return row;
}

}  // namespace

Values batch_norm_forward(const ChannelsShape& s, double epsilon, const Values& input,
                          const Values& weight, const Values& bias) {
  return batch_normal(s, epsilon, input).forward(weight, bias);
}
WeightedGradients batch_norm_backward(const ChannelsShape& s, double epsilon, const Values& input,
                                      const Values& weight, const Values& output_gradient) {
  return batch_normal(s, epsilon, input).backward(weight, output_gradient);
}
Values layer_norm_forward(int64_t features, double epsilon, const Values& input,
                          const Values& weight, const Values& bias) {
  return layer_normal(features, epsilon, input).forward(weight, bias);
}
WeightedGradients layer_norm_backward(int64_t features, double epsilon, const Values& input,
                                      const Values& weight, const Values& output_gradient) {
  return layer_normal(features, epsilon, input).backward(weight, output_gradient);
}

Values attention_forward(const AttentionShape& s, const Values& packed) {
  Values output(packed.size() / 3);
  for_each_head_of(s, [&](const HeadOffsets& head) {
    for (size_t i = 0; i < head.length; ++i) {
      const auto row = softmax_row(s, head, packed, i);
      for (size_t j = 0; j < row.size(); ++j)
        for (size_t k = 0; k < head.width; ++k)
          output[head.result(i) + k] += row[j] * packed[head.value(j) + k];
    }
  });
  return output;
}

Values attention_backward(const AttentionShape& s, const Values& packed, const Values& dy) {
  Values d(packed.size());
  const double scale = 1 / std::sqrt(static_cast<double>(s.width));
  for_each_head_of(s, [&](const HeadOffsets& head) {
    for (size_t i = 0; i < head.length; ++i) {
      const auto row = softmax_row(s, head, packed, i);
      Values slopes(row.size());
      double mean = 0;
      for (size_t j = 0; j < row.size(); ++j) {
        for (size_t k = 0; k < head.width; ++k) {
          slopes[j] += dy[head.result(i) + k] * packed[head.value(j) + k];
          d[head.value(j) + k] += row[j] * dy[head.result(i) + k];
        }
        mean += row[j] * slopes[j];
      }
      for (size_t j = 0; j < row.size(); ++j) {
        const double slope = row[j] * (slopes[j] - mean) * scale;
        for (size_t k = 0; k < head.width; ++k) {
          d[head.query(i) + k] += slope * packed[head.key(j) + k];
          d[head.key(j) + k] += slope * packed[head.query(i) + k];
        }
      }
    }
  });
  return d;
}

}  // namespace tutti::reference
