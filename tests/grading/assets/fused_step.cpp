// One decode step of the graded model in one call: float32 inside, bfloat16 weights and cache. Plain C interface.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

static float widen(uint16_t x) {
    uint32_t bits = uint32_t(x) << 16;
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}

static uint16_t narrow(float x) {  // round to nearest, ties to even
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return uint16_t((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

static void multiply(const uint16_t* w, const float* x, float* out, int rows, int columns) {
    for (int r = 0; r < rows; ++r) {
        float sum = 0;
        for (int c = 0; c < columns; ++c) sum += widen(w[int64_t(r) * columns + c]) * x[c];
        out[r] = sum;
    }
}

static void normalise(const float* x, const uint16_t* weight, float* out, int n, float eps) {
    double sum = 0;
    for (int i = 0; i < n; ++i) sum += double(x[i]) * x[i];
    float scale = 1.0f / std::sqrt(float(sum / n) + eps);
    for (int i = 0; i < n; ++i) out[i] = x[i] * scale * widen(weight[i]);
}

// weights: per layer q, k, v, o, gate, up, down, attention_norm, mlp_norm; then norm, embedding
extern "C" void decode_step(const uint16_t* const* weights, const int* sizes, const float* angles, int64_t token,
                            uint16_t* k, uint16_t* v, int position, float eps, float* logits) {
    const int layers = sizes[0], hidden = sizes[1], ffn = sizes[2], heads = sizes[3], kv_heads = sizes[4];
    const int size = sizes[5], vocab = sizes[6], capacity = sizes[7], half = size / 2;
    std::vector<float> x(hidden), h(hidden), q(heads * size), mixed(heads * size), o(hidden);
    std::vector<float> kv(kv_heads * size), gate(ffn), up(ffn), scores(position + 1);
    const uint16_t* embedding = weights[9 * layers + 1];
    for (int i = 0; i < hidden; ++i) x[i] = widen(embedding[token * hidden + i]);
    auto rotate = [&](float* row) {
        for (int i = 0; i < half; ++i) {
            float low = row[i], high = row[half + i], c = std::cos(angles[i]), s = std::sin(angles[i]);
            row[i] = low * c - high * s;
            row[half + i] = high * c + low * s;
        }
    };
    for (int layer = 0; layer < layers; ++layer) {
        const uint16_t* const* w = weights + 9 * layer;
        normalise(x.data(), w[7], h.data(), hidden, eps);
        multiply(w[0], h.data(), q.data(), heads * size, hidden);
        for (int head = 0; head < heads; ++head) rotate(&q[head * size]);
        const int64_t base = int64_t(layer) * kv_heads * capacity * size;
        for (int side = 0; side < 2; ++side) {
            multiply(w[1 + side], h.data(), kv.data(), kv_heads * size, hidden);
            uint16_t* cache = (side ? v : k) + base;
            for (int head = 0; head < kv_heads; ++head) {
                if (!side) rotate(&kv[head * size]);
                for (int i = 0; i < size; ++i)
                    cache[(int64_t(head) * capacity + position) * size + i] = narrow(kv[head * size + i]);
            }
        }
        for (int head = 0; head < heads; ++head) {
            const int64_t at = base + int64_t(head / (heads / kv_heads)) * capacity * size;
            float largest = -INFINITY, total = 0;
            for (int t = 0; t <= position; ++t) {
                float sum = 0;
                for (int i = 0; i < size; ++i) sum += q[head * size + i] * widen(k[at + int64_t(t) * size + i]);
                scores[t] = sum / std::sqrt(float(size));
                largest = std::max(largest, scores[t]);
            }
            for (int t = 0; t <= position; ++t) total += scores[t] = std::exp(scores[t] - largest);
            for (int i = 0; i < size; ++i) mixed[head * size + i] = 0;
            for (int t = 0; t <= position; ++t)
                for (int i = 0; i < size; ++i)
                    mixed[head * size + i] += scores[t] / total * widen(v[at + int64_t(t) * size + i]);
        }
        multiply(w[3], mixed.data(), o.data(), hidden, heads * size);
        for (int i = 0; i < hidden; ++i) x[i] += o[i];
        normalise(x.data(), w[8], h.data(), hidden, eps);
        multiply(w[4], h.data(), gate.data(), ffn, hidden);
        multiply(w[5], h.data(), up.data(), ffn, hidden);
        for (int i = 0; i < ffn; ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
        multiply(w[6], gate.data(), o.data(), hidden, ffn);
        for (int i = 0; i < hidden; ++i) x[i] += o[i];
    }
    normalise(x.data(), weights[9 * layers], h.data(), hidden, eps);
    for (int i = 0; i < hidden; ++i) h[i] /= std::sqrt(float(hidden));
    multiply(embedding, h.data(), logits, vocab, hidden);
}
