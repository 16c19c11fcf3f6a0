#include "thinning.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <vector>

#include "layout.h"

namespace {

constexpr double kEndless = 1e6;  // segments

// `size` values, on the stack where they are few: between two runs of a model each piece of memory that
// is taken is a walk through code and data that are in no cache.
template <class T, int64_t kFew>
class Values {
 public:
  explicit Values(int64_t size) : many_(size > kFew ? size : 0) {
    std::fill_n(data(), std::min(size, kFew), T{});
  }

  T& operator[](int64_t i) { return data()[i]; }
  const T& operator[](int64_t i) const { return data()[i]; }

 private:
  T* data() { return many_.empty() ? few_ : many_.data(); }
  const T* data() const { return many_.empty() ? few_ : many_.data(); }

  T few_[kFew];
  std::vector<T> many_;
};

constexpr int64_t kFew = 48;  // segments

struct Call {
  const unsigned char* segments;
  int64_t segment_bytes, num_segments;
  const int32_t* pages;
  int64_t first, num_past;
  const int32_t* given;
  const double* worth;
  const EdgekvNumbers* heat;
  const float* vectors;
  int64_t width;
  const EdgekvRows* rows;
};

// What is offered: places count from the first offered one.
class Offer {
 public:
  explicit Offer(const Call& call)
      : call_(call), size_(call.num_segments - call.first), pages_(call.pages ? size_ : 0) {
    const int32_t* page = call.pages;
    for (int64_t place = -call.first; page && place < size_; ++place) {
      if (place >= 0) pages_[place] = page;
      page += segment(place).num_pages;
    }
  }

  int64_t size() const { return size_; }
  int64_t num_past() const { return call_.num_past; }
  int64_t id(int64_t place) const { return segment(place).id; }
  int64_t num_pages(int64_t place) const {
    return call_.given ? call_.given[place] : segment(place).num_pages;
  }
  // What a segment is worth whatever becomes of the others.
  double worth(int64_t place) const {
    double worth = call_.worth ? call_.worth[place] : 1, heat = 1;
    if (call_.heat)
      edgekv_sum_pages(row(place), call_.segment_bytes, 1, pages_[place], call_.heat, &heat);
    return worth * heat;
  }
  bool has_vectors() const { return call_.vectors || call_.rows; }
  int64_t width() const { return call_.vectors ? call_.width : call_.rows->width; }
  const float* vector(int64_t place) const {  // null: none
    if (call_.vectors) return call_.vectors + place * call_.width;
    return edgekv::row_of(*call_.rows, pages_[place][0]);
  }

 private:
  const unsigned char* row(int64_t place) const {
    return call_.segments + (call_.first + place) * call_.segment_bytes;
  }
  const EdgekvSegment& segment(int64_t place) const {
    return *reinterpret_cast<const EdgekvSegment*>(row(place));
  }

  const Call& call_;
  const int64_t size_;
  Values<const int32_t*, kFew> pages_;  // of each
};

// How far apart the neighbours of each segment stand, counted in ids, while segments leave.
class Gaps {
 public:
  explicit Gaps(const Offer& offer) : offer_(offer), links_(offer.size()) {
    for (int64_t i = 0; i < offer.size(); ++i) links_[i] = {i - 1, i + 1};
  }

  double width(int64_t place) const {
    const Link& link = links_[place];
    if (link.before < 0 || link.after >= offer_.size()) return kEndless;
    return std::min(static_cast<double>(offer_.id(link.after) - offer_.id(link.before)), kEndless);
  }
  void close_up(int64_t place) {
    const Link link = links_[place];
    if (link.before >= 0) links_[link.before].after = link.after;
    if (link.after < offer_.size()) links_[link.after].before = link.before;
  }

 private:
  struct Link {
    int64_t before, after;
  };

  const Offer& offer_;
  Values<Link, kFew> links_;
};

// Lanes in an order of their own, so that it can be computed by vectors and every machine chooses
// alike; products and sums are not contracted, see CMakeLists.txt.
float dot(const float* a, const float* b, int64_t width) {
  constexpr int kLanes = 8;
  float sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  for (int lane = 0; i < width; ++i, ++lane) sums[lane] += a[i] * b[i];
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  return sums[0];
}

// How far each segment's vector is from the nearest other one that is still there, 1 - cosine.
class Nearest {
 public:
  explicit Nearest(const Offer& offer)
      : num_segments_(offer.has_vectors() ? offer.size() : 0),
        norms_(num_segments_),
        products_(num_segments_ * num_segments_),
        found_(num_segments_) {
    for (int64_t i = 0; i < num_segments_; ++i) {
      const float* vector = offer.vector(i);
      if (!vector) continue;
      const float norm = std::sqrt(dot(vector, vector, offer.width()));
      if (!(norm > 0)) continue;  // NaN: no vector
      norms_[i] = norm;
      for (int64_t j = 0; j < std::min(i, offer.num_past()); ++j)  // what stays is not rated
        if (norms_[j])
          products_[i * num_segments_ + j] = products_[j * num_segments_ + i] =
              dot(vector, offer.vector(j), offer.width());
    }
  }

  double norm(int64_t place) const { return norms_[place]; }
  double distance(int64_t place, const Values<char, kFew>& here) {
    Found& found = found_[place];
    if (found.place < 0 || !here[found.place]) found = search(place, here);
    return std::max(found.distance, 0.f);
  }

 private:
  struct Found {
    int64_t place = -1;
    float distance = 0;
  };

  Found search(int64_t place, const Values<char, kFew>& here) const {
    const float* products = &products_[place * num_segments_];
    Found best{place, std::numeric_limits<float>::infinity()};
    for (int64_t i = 0; i < num_segments_; ++i) {
      if (i == place || !here[i] || !norms_[i]) continue;
      const float distance = 1.f - products[i] / (norms_[place] * norms_[i]);
      if (distance < best.distance) best = {i, distance};
    }
    return best;
  }

  const int64_t num_segments_;
  Values<float, kFew> norms_;
  Values<float, kFew * kFew> products_;
  Values<Found, kFew> found_;
};

class Thinning {
 public:
  explicit Thinning(const Offer& offer, bool by_gap)
      : offer_(offer), by_gap_(by_gap), here_(offer.size()), gaps_(offer), nearest_(offer) {
    for (int64_t place = 0; place < offer.size(); ++place) here_[place] = 1;
  }

  bool is_here(int64_t place) const { return here_[place]; }
  // The lowest rated of the past, of equals the oldest; -1 if nothing is left to leave.
  int64_t lowest() {
    int64_t found = -1;
    double least = 0;
    for (int64_t place = 0; place < offer_.num_past(); ++place) {
      // Pages that forks hold too come free only with the forks: those cannot be given back.
      if (!here_[place] || !offer_.num_pages(place)) continue;
      const double rating = rate(place);
      if (found < 0 || rating < least) found = place, least = rating;
    }
    return found;
  }
  void forget(int64_t place) {
    here_[place] = 0;
    gaps_.close_up(place);
  }

 private:
  double rate(int64_t place) {
    double rating = offer_.worth(place);
    if (offer_.has_vectors()) {
      if (!nearest_.norm(place)) return -1;  // without a vector: before all others
      rating *= nearest_.distance(place, here_) * nearest_.norm(place);
    }
    if (by_gap_) rating *= gaps_.width(place);
    return rating == rating ? rating : -1;  // no number: as good as nothing
  }

  const Offer& offer_;
  const bool by_gap_;
  Values<char, kFew> here_;  // 1 until it leaves
  Gaps gaps_;
  Nearest nearest_;
};

}  // namespace

int64_t edgekv_thin_out(const unsigned char* segments, int64_t segment_bytes, int64_t num_segments,
                        const int32_t* pages, int64_t first, int64_t num_past,
                        const int32_t* given, const double* worth, const EdgekvNumbers* heat,
                        const float* vectors, int64_t width, const EdgekvRows* rows, int32_t by_gap,
                        int64_t num_pages, int64_t* gone, int64_t* missing) try {
  int64_t unread;
  if (rows && edgekv_make_rows(segments, segment_bytes, num_segments, pages, rows, nullptr, nullptr,
                               &unread))
    return -2;
  const Call call{segments, segment_bytes, num_segments, pages, first, num_past,
                  given,    worth,         heat,         vectors, width, rows};
  const Offer offer(call);
  Thinning thinning(offer, by_gap);
  while (num_pages > 0) {
    const int64_t place = thinning.lowest();
    if (place < 0) break;
    num_pages -= offer.num_pages(place);
    thinning.forget(place);
  }
  *missing = std::max<int64_t>(num_pages, 0);
  int64_t num_gone = 0;
  for (int64_t place = 0; place < num_past; ++place)
    if (!thinning.is_here(place)) gone[num_gone++] = place;
  return num_gone;
} catch (const std::bad_alloc&) {
  return -1;
}
