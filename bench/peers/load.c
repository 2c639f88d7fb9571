/* Asks a server for chat completions over many connections, on one core.
 *
 *     load PORT KEYS CONNECTIONS SECONDS BYTES RATE TOKENS INTERVAL_US
 *
 * KEYS: a file with a key a line; connections take them in turn. In a request, the key of its client.
 * SECONDS: after them nothing new is asked; what was asked is read to its end. BYTES: of a body.
 * RATE: requests a second of all connections together, each due at its own time, from which its
 * latency counts; 0: each connection asks again as soon as it has its answer. TOKENS: above 0, the
 * answers are streams of so many events, INTERVAL_US apart, and connections begin one after the
 * other within the time of a stream.
 *
 * Prints one JSON object: counts, seconds, and quantiles of latencies, of the times to the first
 * token and of the gaps between tokens, in milliseconds. Status 1 if an answer was not as it should
 * be.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_CONNECTIONS = 4096, READ_BYTES = 65536, TAIL = 64, HEAD_BYTES = 16384, MOST_KEYS = 1000 };

struct numbers {
    float *of;
    size_t count, room;
};

struct connection {
    int fd, is_busy, is_streamed, has_head, is_done, is_chunked, status, tokens, wants_write;
    size_t head_size, sent;          /* of the request */
    size_t length, received, tail_size; /* of the answer's body */
    char head[512], answer_head[HEAD_BYTES], tail[TAIL];
    size_t answer_size;
    unsigned long number;
    uint64_t due_ns, last_ns;
};

static struct connection all[MOST_CONNECTIONS];
static struct numbers latencies, firsts, gaps;
static unsigned long asked, answered, tokens_read, bad, reconnects, body_bytes;
static char *body, *number_at, said[1024];
static size_t body_size;
static int port, key_count, tokens, epoll_fd;
static char keys[MOST_KEYS][128];

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void add(struct numbers *to, uint64_t ns) {
    if (to->count == to->room) {
        to->room = to->room ? 2 * to->room : 65536;
        if (!(to->of = realloc(to->of, to->room * sizeof *to->of))) fail("realloc");
    }
    to->of[to->count++] = (float)ns / 1e6f;
}

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void print_quantiles(const char *name, struct numbers *of) {
    static const double AT[] = {0.5, 0.9, 0.99, 1.0};
    static const char *NAMES[] = {"p50", "p90", "p99", "max"};
    qsort(of->of, of->count, sizeof *of->of, by_size);
    printf(",\"%s\":{\"count\":%zu", name, of->count);
    for (int i = 0; i < 4 && of->count; i++)
        printf(",\"%s\":%.3f", NAMES[i], (double)of->of[(size_t)(AT[i] * (double)(of->count - 1))]);
    printf("}");
}

static void read_keys(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) fail(path);
    while (key_count < MOST_KEYS && fscanf(file, "%127s", keys[key_count]) == 1) key_count++;
    fclose(file);
    if (!key_count) exit(2);
}

static void make_body(size_t bytes) {
    char begin[512], end[256];
    int streams = tokens > 0;
    sprintf(end, "]]\"}]%s}",
            streams ? ",\"stream\":true,\"stream_options\":{\"include_usage\":true}" : "");
    size_t around = (size_t)sprintf(
        begin, "{\"model\":\"m\",\"max_tokens\":%d,\"messages\":[{\"role\":\"user\",\"content\":\"[[%8d %6d ",
        streams ? tokens : 100, 0, 0) + strlen(end);
    size_t filler = bytes > around ? bytes - around : 0;
    body_size = around + filler;
    if (!(body = malloc(body_size + 1))) fail("malloc");
    number_at = strstr(strcpy(body, begin), "[[") + 2;
    char *at = number_at + sprintf(number_at, "%8d %6zu ", 0, filler);
    for (size_t i = 0; i < filler; i++) *at++ = (char)('a' + i % 26);
    strcpy(at, end);
}

static void connect_to(struct connection *it) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int yes = 1;
    it->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (it->fd < 0 || connect(it->fd, (struct sockaddr *)&at, sizeof at)) fail("connect");
    setsockopt(it->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = it};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, it->fd, &wanted)) fail("epoll_ctl");
    it->wants_write = 0;
}

/* Sends what is left of the request. */
static void send_on(struct connection *it) {
    struct iovec {
        void *base;
        size_t size;
    };
    while (it->sent < it->head_size + body_size) {
        struct msghdr message = {0};
        struct iovec parts[2];
        size_t count = 0;
        if (it->sent < it->head_size) {
            parts[count++] = (struct iovec){it->head + it->sent, it->head_size - it->sent};
            parts[count++] = (struct iovec){body, body_size};
        } else {
            size_t from = it->sent - it->head_size;
            parts[count++] = (struct iovec){body + from, body_size - from};
        }
        message.msg_iov = (void *)parts;
        message.msg_iovlen = count;
        /* The number differs between connections that send at the same time. */
        char digits[9];
        snprintf(digits, sizeof digits, "%8lu", it->number % 100000000);
        memcpy(number_at, digits, 8);
        ssize_t size = sendmsg(it->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (size < 0 && errno != EAGAIN) {
            bad++;
            snprintf(said, sizeof said, "send: %s", strerror(errno));
            return;
        }
        if (size > 0) it->sent += (size_t)size;
        int is_left = it->sent < it->head_size + body_size;
        if (is_left != it->wants_write) {
            struct epoll_event wanted = {.events = is_left ? EPOLLIN | EPOLLOUT : EPOLLIN,
                                         .data.ptr = it};
            epoll_ctl(epoll_fd, EPOLL_CTL_MOD, it->fd, &wanted);
            it->wants_write = is_left;
        }
        if (is_left) return;
    }
}

static void ask(struct connection *it, uint64_t due_ns) {
    it->is_busy = 1;
    it->has_head = it->is_done = it->is_chunked = it->status = it->tokens = 0;
    it->sent = it->length = it->received = it->tail_size = it->answer_size = 0;
    it->number = asked++;
    it->due_ns = it->last_ns = due_ns;
    body_bytes += body_size;
    send_on(it);
}

static void conclude(struct connection *it, uint64_t now, const char *fault) {
    it->is_busy = 0;
    if (!fault && it->status != 200) fault = "a status that is not 200";
    if (!fault && tokens && it->tokens != tokens) fault = "a stream without all of its tokens";
    if (fault) {
        if (!bad++)
            snprintf(said, sizeof said, "%s: status %d, %d tokens, %zu bytes: %.*s", fault, it->status,
                     it->tokens, it->received, (int)(it->answer_size < 600 ? it->answer_size : 600),
                     it->answer_head);
        return;
    }
    answered++;
    add(&latencies, now - it->due_ns);
}

/* Reads the head of an answer; the size of what follows it in `answer_head`, or -1. */
static long read_head(struct connection *it) {
    char *end = memmem(it->answer_head, it->answer_size, "\r\n\r\n", 4);
    if (!end) return -1;
    end[2] = 0;
    it->has_head = 1;
    it->status = atoi(it->answer_head + 9);
    char *length = strcasestr(it->answer_head, "\r\ncontent-length:");
    it->is_chunked = !length;
    if (length) it->length = strtoul(length + 17, NULL, 10);
    end[2] = '\r';
    return (long)(it->answer_size - (size_t)(end + 4 - it->answer_head));
}

static void take_body(struct connection *it, const char *data, size_t size, uint64_t now) {
    it->received += size;
    if (tokens) {
        for (const char *at = data; (at = memchr(at, '@', size - (size_t)(at - data))); at++) {
            add(it->tokens ? &gaps : &firsts, now - it->last_ns);
            it->last_ns = now;
            it->tokens++;
            tokens_read++;
        }
    }
    if (!it->is_chunked) {
        it->is_done = it->received >= it->length;
        return;
    }
    /* A chunked body ends with an empty chunk. */
    if (size >= TAIL) {
        memcpy(it->tail, data + size - TAIL, it->tail_size = TAIL);
    } else {
        size_t kept = it->tail_size + size > TAIL ? TAIL - size : it->tail_size;
        memmove(it->tail, it->tail + it->tail_size - kept, kept);
        memcpy(it->tail + kept, data, size);
        it->tail_size = kept + size;
    }
    it->is_done = it->tail_size >= 7 && !memcmp(it->tail + it->tail_size - 7, "\r\n0\r\n\r\n", 7);
}

static void read_from(struct connection *it) {
    static char data[READ_BYTES];
    ssize_t size = recv(it->fd, data, sizeof data, MSG_DONTWAIT);
    if (size < 0 && errno == EAGAIN) return;
    uint64_t now = now_ns();
    if (size <= 0 || !it->is_busy) {
        if (it->is_busy) conclude(it, now, "the server closed the connection");
        close(it->fd);
        reconnects++;
        connect_to(it);
        return;
    }
    const char *part = data;
    size_t left = (size_t)size;
    if (!it->has_head) {
        size_t taken = left < HEAD_BYTES - it->answer_size ? left : HEAD_BYTES - it->answer_size;
        memcpy(it->answer_head + it->answer_size, data, taken);
        it->answer_size += taken;
        long behind = read_head(it);
        if (behind < 0) return;
        left = left - taken + (size_t)behind;
        part = data + (size_t)size - left;
    }
    if (left || (!it->is_chunked && !it->length)) take_body(it, part, left, now);
    if (it->is_done) conclude(it, now, NULL);
}

static double cpu_s(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

int main(int count, char **words) {
    if (count != 9) return 2;
    port = atoi(words[1]);
    read_keys(words[2]);
    int connections = atoi(words[3]);
    double seconds = atof(words[4]), rate = atof(words[6]);
    tokens = atoi(words[7]);
    uint64_t stream_ns = strtoull(words[8], NULL, 10) * 1000 * (uint64_t)tokens;
    if (connections < 1 || connections > MOST_CONNECTIONS) return 2;
    make_body(strtoul(words[5], NULL, 10));
    if ((epoll_fd = epoll_create1(EPOLL_CLOEXEC)) < 0) fail("epoll_create1");
    for (int i = 0; i < connections; i++) {
        all[i].head_size = (size_t)snprintf(
            all[i].head, sizeof all[i].head,
            "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAuthorization: Bearer %s\r\n"
            "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n", port, keys[i % key_count],
            body_size);
        connect_to(&all[i]);
    }
    double before_s = cpu_s();
    uint64_t start = now_ns(), stop = start + (uint64_t)(seconds * 1e9), last_answer = start;
    unsigned long due = 0;
    int busy = 0, next = 0;
    for (;;) {
        uint64_t now = now_ns(), wake = stop;
        if (now < stop) {
            for (int tried = 0; tried < connections && busy < connections; tried++) {
                uint64_t at = now;
                if (rate > 0) {
                    at = start + (uint64_t)((double)due * 1e9 / rate);
                } else if (tokens && due < (unsigned long)connections) {
                    at = start + stream_ns * due / (unsigned long)connections;
                }
                if (at > now) {
                    wake = at < stop ? at : stop;
                    break;
                }
                struct connection *it = &all[next];
                next = (next + 1) % connections;
                if (it->is_busy) continue;
                due++;
                busy++;
                ask(it, rate > 0 ? at : now);
            }
        } else if (!busy) {
            break;
        }
        struct epoll_event come[256];
        uint64_t wait_ns = now >= stop ? 100000000u : wake > now ? wake - now : 0;
        if (now < stop && busy == connections) wait_ns = stop - now;
        struct timespec wait = {(time_t)(wait_ns / 1000000000u), (long)(wait_ns % 1000000000u)};
        int found = epoll_pwait2(epoll_fd, come, 256, &wait, NULL);
        if (found < 0 && errno != EINTR) fail("epoll_pwait2");
        for (int i = 0; i < found; i++) {
            struct connection *it = come[i].data.ptr;
            int was_busy = it->is_busy;
            if (come[i].events & EPOLLOUT) send_on(it);
            if (come[i].events & ~(unsigned)EPOLLOUT) read_from(it);
            if (was_busy && !it->is_busy) {
                busy--;
                last_answer = now_ns();
            }
        }
        if (bad > 1000 || now > stop + 120000000000u) break;
    }
    printf("{\"requests\":%lu,\"asked\":%lu,\"tokens\":%lu,\"bad\":%lu,\"reconnects\":%lu,"
           "\"body_bytes\":%lu,\"wall_s\":%.3f,\"cpu_s\":%.3f",
           answered, asked, tokens_read, bad, reconnects, body_bytes,
           (double)(last_answer - start) / 1e9, cpu_s() - before_s);
    print_quantiles("latency_ms", &latencies);
    print_quantiles("first_ms", &firsts);
    print_quantiles("gap_ms", &gaps);
    printf("}\n");
    if (bad) fprintf(stderr, "%s\n", said);
    return bad || answered != asked;
}
