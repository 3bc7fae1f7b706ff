// Linear regression on GPUs. The whole step (gradient, allreduce, update) is recorded once as a
// CUDA graph and then replayed, so the host makes one launch per step.
//   tutti-run -np 2 graph_trainer    ranks with a GPU each
//   graph_trainer 4                  four ranks that are threads and share the first GPU

#include <cuda_runtime.h>
#include <tutti/tutti.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tutti/backends/store.h"

constexpr int kFeatures = 64, kSamples = 256, kSteps = 500;
constexpr float kRate = 0.3F;

void must(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

// Computes the model's answer to each sample minus the right answer.
__global__ void residuals(const float* weights, const float* samples, const float* answers,
                          float* off) {
  const int sample = static_cast<int>(threadIdx.x);
  float said = 0;
  for (int i = 0; i < kFeatures; ++i) said += weights[i] * samples[sample * kFeatures + i];
  off[sample] = said - answers[sample];
}

__global__ void gradients(const float* samples, const float* off, float* gradient) {
  const int feature = static_cast<int>(threadIdx.x);
  float sum = 0;
  for (int i = 0; i < kSamples; ++i) sum += off[i] * samples[i * kFeatures + feature];
  gradient[feature] = sum / kSamples;
}

__global__ void step(float* weights, const float* gradient) {
  weights[threadIdx.x] -= kRate * gradient[threadIdx.x];
}

// Allocates memory on the current GPU and fills it with these values.
float* on_gpu(const std::vector<float>& values) {
  float* memory = nullptr;
  must(cudaMalloc(&memory, values.size() * sizeof(float)));
  must(cudaMemcpy(memory, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice));
  return memory;
}

void train(tutti::Communicator& comm, int gpu) {
  must(cudaSetDevice(gpu));
  // Every rank has its own samples, and all of them follow from the same true weights.
  std::mt19937 random(static_cast<unsigned>(comm.rank()));
  std::normal_distribution<float> normal;
  std::vector<float> truth(kFeatures), host_samples(kSamples * kFeatures), host_answers(kSamples);
  for (int i = 0; i < kFeatures; ++i) truth[static_cast<size_t>(i)] = static_cast<float>(i) / 10;
  for (float& value : host_samples) value = normal(random);
  for (size_t i = 0; i < host_answers.size(); ++i)
    for (size_t k = 0; k < truth.size(); ++k)
      host_answers[i] += truth[k] * host_samples[i * kFeatures + k];
  float* const samples = on_gpu(host_samples);
  float* const answers = on_gpu(host_answers);
  float* const off = on_gpu(std::vector<float>(kSamples));
  float* const weights = on_gpu(std::vector<float>(kFeatures));
  float* const gradient = on_gpu(std::vector<float>(kFeatures));
  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));

  tutti::PersistentAllreduce allreduce(comm, "gradient",
                                       tutti::TensorView::cuda(gradient, kFeatures, stream, gpu));
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  residuals<<<1, kSamples, 0, stream>>>(weights, samples, answers, off);
  gradients<<<1, kFeatures, 0, stream>>>(samples, off, gradient);
  allreduce.launch({stream});  // the mean over the ranks
  step<<<1, kFeatures, 0, stream>>>(weights, gradient);
  cudaGraph_t graph = nullptr;
  must(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t replay = nullptr;
  must(cudaGraphInstantiate(&replay, graph, 0));
  must(cudaGraphUpload(replay, stream));
  must(cudaStreamSynchronize(stream));
  comm.barrier().wait();  // CUDA cannot prepare a GPU while another rank's kernel waits on it

  for (int i = 0; i < kSteps; ++i) must(cudaGraphLaunch(replay, stream));
  must(cudaStreamSynchronize(stream));
  allreduce.check();  // throws if a rank did not take part

  std::vector<float> learned(kFeatures);
  must(cudaMemcpy(learned.data(), weights, kFeatures * sizeof(float), cudaMemcpyDeviceToHost));
  float worst = 0;
  for (size_t i = 0; i < truth.size(); ++i)
    worst = std::max(worst, std::abs(learned[i] - truth[i]));
  if (comm.rank() == 0)
    std::printf("%d ranks, %d steps as one graph each: %s, off by %g\n", comm.size(), kSteps,
                worst < 1e-3F ? "learned" : "not learned", static_cast<double>(worst));
  must(cudaGraphExecDestroy(replay));
  must(cudaGraphDestroy(graph));
  must(cudaStreamDestroy(stream));
  for (float* memory : {samples, answers, off, weights, gradient}) must(cudaFree(memory));
  if (worst >= 1e-3F) throw std::runtime_error("the weights are not those of the truth");
}

int main(int argc, char** argv) try {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 0;
  if (argc > 2 || (argc > 1 && (threads < 1 || threads > 8))) {
    std::fprintf(stderr, "usage: graph_trainer [1 to 8 ranks that are threads]\n");
    return 2;
  }
  // Each stream needs its own hardware queue, so that no kernel waits for one queued after it.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::fprintf(stderr, "graph_trainer: no GPU\n");
    return 1;
  }
  if (threads == 0) {
    auto comm = tutti::Communicator::create();
    train(*comm, comm->local_rank() % gpus);
    return 0;
  }
  const auto store = tutti::make_memory_store();
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < threads; ++rank)
    ranks.emplace_back([=] {
      try {
        auto comm = tutti::Communicator::create(tutti::Options::thread_rank(rank, threads, store));
        train(*comm, 0);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "graph_trainer: rank %d: %s\n", rank, error.what());
        std::_Exit(1);
      }
    });
} catch (const std::exception& error) {
  std::fprintf(stderr, "graph_trainer: %s\n", error.what());
  return 1;
}
