// What `hedgerow doctor --calibrate` asks of `hedgerow-worker time-layer`, as JSON on its stdin,
// and what that answers: how long a layer of this shape takes. What the seconds say of a machine's
// speed is the plan's to know (coordinator/cli/doctor/calibration.hpp).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "storage/model/attention_spec.hpp"

namespace hedgerow::measure {

// SmolLM2-135M's layer unless told.
struct LayerProbe {
  int hidden_size = 576;
  int intermediate_size = 1536;
  int num_attention_heads = 9;
  int num_key_value_heads = 3;
  int head_dim = 64;
  storage::AttentionSpec attention{};
  int seq_len = 512;
  int sequences = 4;  // of one forward
  std::string device = "auto";
  std::string compute_dtype = "auto";
  int threads = 1;  // of the CPU
  bool operator==(const LayerProbe&) const = default;
  NLOHMANN_DEFINE_TYPE_INTRUSIVE(LayerProbe,
                                 hidden_size,
                                 intermediate_size,
                                 num_attention_heads,
                                 num_key_value_heads,
                                 head_dim,
                                 attention,
                                 seq_len,
                                 sequences,
                                 device,
                                 compute_dtype,
                                 threads)
};

// Medians, in seconds, of one forward of `sequences` sequences through the layer.
struct LayerSeconds {
  double products = 0.0;  // all of the layer but its attention
  double capture = 0.0;   // with the teacher's attention
  double transfer = 0.0;  // with that, the student's, its gradients and the optimizer's step
  NLOHMANN_DEFINE_TYPE_INTRUSIVE(LayerSeconds, products, capture, transfer)
};

// The program's first line, once it could compute: where, and in which dtype.
struct ProbedDevice {
  std::string model;
  std::uint64_t memory_bytes = 0;
  std::string compute_dtype;  // "bf16", "fp32"
  NLOHMANN_DEFINE_TYPE_INTRUSIVE(ProbedDevice, model, memory_bytes, compute_dtype)
};

}  // namespace hedgerow::measure
