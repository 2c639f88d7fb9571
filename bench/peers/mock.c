/* Two or more mock upstreams with the OpenAI API, in one process on one core.
 *
 *     mock UPSTREAMS KEY TOKENS INTERVAL_US       e.g. mock 2 upstream-key 100 20000
 *
 * Its first line on stdout is the ports. A chat completion is answered whole with about 1 KB, or,
 * if its body says `"stream": true`, with TOKENS events, one each INTERVAL_US, then the usage and
 * [DONE]. GET /counters has what each upstream was asked, as JSON.
 *
 * Each body must hold `[[NUMBER LENGTH filler]]`, as load.c writes it, with all of the filler; and
 * each call must come with KEY and without a key of a client: those begin with `rl-` or `sk-`.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_UPSTREAMS = 16, MOST_REQUEST = 1 << 20, FILLER = 1 << 18, EVENTS_AT_ONCE = 256 };

struct counters {
    unsigned long calls, streams, tokens, prompt_tokens, body_bytes;
    unsigned long not_whole, wrong_key, client_key, left;
};

struct connection {
    int fd, upstream, listens;
    char *data; /* of a request */
    size_t size, room;
    int left; /* events of its stream; 0: it has none */
    unsigned long number, prompt_tokens;
    uint64_t due_ns;
    struct connection *earlier, *later; /* streams by `due_ns` */
};

static struct counters counted[MOST_UPSTREAMS];
static int upstreams, tokens, epoll_fd;
static uint64_t interval_ns;
static char authorization[256], filler[FILLER];
static struct connection *first, *last;

static const char HEAD[] = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n";
static const char STREAM[] =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
static char whole[4096], event[512], end_of_stream[2048];
static size_t whole_size, event_size, end_size;
static unsigned long answers;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static size_t chunk(char *into, const char *text) {
    return (size_t)sprintf(into, "%zx\r\n%s\r\n", strlen(text), text);
}

static void write_answers(void) {
    static const char ABOUT[] = "\"id\":\"chatcmpl-00000000\",\"created\":1700000000,\"model\":\"m\"";
    char body[2048], text[701], part[1024];
    memset(text, 'x', 700);
    text[700] = 0;
    snprintf(body, sizeof body,
             "{%s,\"object\":\"chat.completion\",\"choices\":[{\"index\":0,\"message\":{\"role\":"
             "\"assistant\",\"content\":\"%s\",\"refusal\":null},\"finish_reason\":\"stop\","
             "\"logprobs\":null}],\"usage\":{\"prompt_tokens\":00000000,\"completion_tokens\":%d,"
             "\"total_tokens\":00000000}}", ABOUT, text, tokens);
    whole_size = (size_t)sprintf(whole, HEAD, strlen(body));
    whole_size += (size_t)sprintf(whole + whole_size, "%s", body);
    snprintf(part, sizeof part,
             "data: {%s,\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{"
             "\"content\":\"@\"},\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n", ABOUT);
    event_size = chunk(event, part);
    snprintf(part, sizeof part,
             "data: {%s,\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{},"
             "\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":null}\n\n", ABOUT);
    end_size = chunk(end_of_stream, part);
    snprintf(part, sizeof part,
             "data: {%s,\"object\":\"chat.completion.chunk\",\"choices\":[],\"usage\":{"
             "\"prompt_tokens\":00000000,\"completion_tokens\":%d,\"total_tokens\":00000000}}\n\n",
             ABOUT, tokens);
    end_size += chunk(end_of_stream + end_size, part);
    end_size += chunk(end_of_stream + end_size, "data: [DONE]\n\n");
    end_size += (size_t)sprintf(end_of_stream + end_size, "0\r\n\r\n");
}

static void unlink_stream(struct connection *of) {
    *(of->earlier ? &of->earlier->later : &first) = of->later;
    *(of->later ? &of->later->earlier : &last) = of->earlier;
    of->earlier = of->later = NULL;
}

static void link_stream(struct connection *of) {
    struct connection *before = last;
    while (before && before->due_ns > of->due_ns) before = before->earlier;
    of->earlier = before;
    of->later = before ? before->later : first;
    *(before ? &before->later : &first) = of;
    *(of->later ? &of->later->earlier : &last) = of;
}

static void close_connection(struct connection *it) {
    if (it->left) {
        unlink_stream(it);
        counted[it->upstream].left++;
    }
    close(it->fd);
    free(it->data);
    free(it);
}

/* Writes a number of eight digits behind each such text of an answer. */
static void set(char *answer, size_t size, const char *behind, const char *form, unsigned long number) {
    char digits[16], *at = answer, *end = answer + size;
    snprintf(digits, sizeof digits, form, number % 100000000);
    while ((at = memmem(at, (size_t)(end - at), behind, strlen(behind))))
        memcpy(at += strlen(behind), digits, 8);
}

/* Sets the id of an answer, for a client may take the same answer again for a mistake. */
static void set_number(char *answer, size_t size, unsigned long number) {
    set(answer, size, "chatcmpl-", "%08lu", number);
}

/* A prompt has a token for four bytes of its body, so that clients that estimate learn the truth. */
static void set_usage(char *answer, size_t size, unsigned long prompt_tokens) {
    set(answer, size, "prompt_tokens\":", "%8lu", prompt_tokens);
    set(answer, size, "total_tokens\":", "%8lu", prompt_tokens + (unsigned long)tokens);
}

/* Sends all of it; false if the peer does not take it, and its connection is to be closed. */
static int give(struct connection *to, const char *data, size_t size) {
    return send(to->fd, data, size, MSG_NOSIGNAL) == (ssize_t)size;
}

static int give_json(struct connection *to, const char *body) {
    char answer[8192];
    int size = snprintf(answer, sizeof answer, HEAD, strlen(body));
    size += snprintf(answer + size, sizeof answer - (size_t)size, "%s", body);
    return give(to, answer, (size_t)size);
}

static int give_page(struct connection *to, const char *path) {
    char page[8000] = "[";
    if (!strncmp(path, "/counters", 9)) {
        size_t size = 1;
        for (int i = 0; i < upstreams; i++) {
            struct counters *of = &counted[i];
            size += (size_t)sprintf(
                page + size,
                "%s{\"calls\":%lu,\"streams\":%lu,\"tokens\":%lu,\"prompt_tokens\":%lu,"
                "\"body_bytes\":%lu,"
                "\"not_whole\":%lu,\"wrong_key\":%lu,\"client_key\":%lu,\"left\":%lu}",
                i ? "," : "", of->calls, of->streams, of->tokens, of->prompt_tokens,
                of->body_bytes, of->not_whole, of->wrong_key, of->client_key, of->left);
        }
        strcpy(page + size, "]");
        return give_json(to, page);
    }
    /* What routers ask a server at their start. */
    return give_json(to, "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\",\"created\":1,"
                         "\"owned_by\":\"mock\"}],\"model_path\":\"m\",\"served_model_name\":\"m\","
                         "\"model_id\":\"m\",\"status\":\"ok\"}");
}

static void check_body(struct counters *of, const char *body, size_t size) {
    const char *begin = memmem(body, size, "[[", 2);
    unsigned long number, length;
    int read = 0;
    if (begin && sscanf(begin, "[[%8lu %6lu %n", &number, &length, &read) == 2 && read &&
        length < FILLER && begin + read + length + 2 <= body + size &&
        !memcmp(begin + read, filler, length) && !memcmp(begin + read + length, "]]", 2))
        return;
    of->not_whole++;
}

static int answer(struct connection *to, char *head, const char *body, size_t size) {
    struct counters *of = &counted[to->upstream];
    if (!strncmp(head, "GET ", 4)) return give_page(to, head + 4);
    of->calls++;
    of->body_bytes += size;
    to->prompt_tokens = size / 4;
    of->prompt_tokens += to->prompt_tokens;
    check_body(of, body, size);
    of->wrong_key += !strcasestr(head, authorization);
    of->client_key += strstr(head, " rl-") || strstr(head, " sk-");
    /* Gateways write the field at either end. */
    if (memmem(body, size, "\"stream\":true", 13) || memmem(body, size, "\"stream\": true", 14)) {
        of->streams++;
        to->number = ++answers;
        to->left = tokens + 1;
        to->due_ns = now_ns() + interval_ns;
        link_stream(to);
        return give(to, STREAM, sizeof STREAM - 1);
    }
    set_number(whole, whole_size, ++answers);
    set_usage(whole, whole_size, to->prompt_tokens);
    return give(to, whole, whole_size);
}

/* Answers the whole requests that have come; false if the connection is to be closed. */
static int take(struct connection *from) {
    while (!from->left && from->size) {
        from->data[from->size] = 0;
        char *end = memmem(from->data, from->size, "\r\n\r\n", 4);
        if (!end) return from->size < 65536;
        *end = 0;
        char *stated = strcasestr(from->data, "\r\ncontent-length:");
        size_t length = stated ? strtoul(stated + 17, NULL, 10) : 0;
        size_t head = (size_t)(end + 4 - from->data), size = head + length;
        if (size >= MOST_REQUEST) return 0;
        if (from->size < size) {
            *end = '\r';
            return 1;
        }
        if (!answer(from, from->data, end + 4, length)) return 0;
        from->size -= size;
        memmove(from->data, from->data + size, from->size);
    }
    return 1;
}

static void read_from(struct connection *from) {
    for (;;) {
        if (from->room - from->size < 65537) {
            from->room = from->room ? 2 * from->room : 131072;
            if (from->room > 4 * MOST_REQUEST || !(from->data = realloc(from->data, from->room)))
                fail("a request is too long");
        }
        size_t space = from->room - from->size - 1;
        ssize_t size = recv(from->fd, from->data + from->size, space, 0);
        if (size < 0 && errno == EAGAIN) return;
        if (size <= 0) break;
        from->size += (size_t)size;
        if (!take(from)) break;
        if ((size_t)size < space) return;
    }
    close_connection(from);
}

static void watch(int fd, int upstream, int listens) {
    struct connection *it = calloc(1, sizeof *it);
    if (!it) fail("calloc");
    *it = (struct connection){.fd = fd, .upstream = upstream, .listens = listens};
    struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = it};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &wanted)) fail("epoll_ctl");
}

static void admit(struct connection *at) {
    int fd, yes = 1;
    while ((fd = accept4(at->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        watch(fd, at->upstream, 0);
    }
}

static void stream_on(void) {
    uint64_t now = now_ns();
    while (first && first->due_ns <= now) {
        struct connection *to = first;
        int is_token = --to->left > 0, is_given;
        if (is_token) counted[to->upstream].tokens++;
        char *part = is_token ? event : end_of_stream;
        size_t size = is_token ? event_size : end_size;
        set_number(part, size, to->number);
        if (!is_token) set_usage(part, size, to->prompt_tokens);
        is_given = give(to, part, size);
        unlink_stream(to);
        if (is_token) {
            to->due_ns += interval_ns;
            link_stream(to);
        }
        if (!is_given) {
            /* The loop may hold an event of it: its end is read there. */
            shutdown(to->fd, SHUT_RDWR);
        }
    }
}

int main(int count, char **words) {
    if (count != 5 || (upstreams = atoi(words[1])) < 1 || upstreams > MOST_UPSTREAMS) return 2;
    snprintf(authorization, sizeof authorization, "authorization: Bearer %s\r\n", words[2]);
    authorization[strlen(authorization) - 2] = 0;
    tokens = atoi(words[3]);
    interval_ns = strtoull(words[4], NULL, 10) * 1000;
    for (size_t i = 0; i < sizeof filler; i++) filler[i] = (char)('a' + i % 26);
    write_answers();
    signal(SIGPIPE, SIG_IGN);
    if ((epoll_fd = epoll_create1(EPOLL_CLOEXEC)) < 0) fail("epoll_create1");
    for (int i = 0; i < upstreams; i++) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t size = sizeof at;
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0 || bind(fd, (struct sockaddr *)&at, size) || listen(fd, 4096) ||
            getsockname(fd, (struct sockaddr *)&at, &size))
            fail("listen");
        watch(fd, i, 1);
        printf("%s%d", i ? " " : "", ntohs(at.sin_port));
    }
    printf("\n");
    fflush(stdout);
    for (;;) {
        struct epoll_event come[EVENTS_AT_ONCE];
        struct timespec wait = {0, 0};
        if (first) {
            uint64_t now = now_ns(), left = first->due_ns > now ? first->due_ns - now : 0;
            wait.tv_sec = (time_t)(left / 1000000000u);
            wait.tv_nsec = (long)(left % 1000000000u);
        }
        int found = epoll_pwait2(epoll_fd, come, EVENTS_AT_ONCE, first ? &wait : NULL, NULL);
        if (found < 0 && errno != EINTR) fail("epoll_pwait2");
        for (int i = 0; i < found; i++) {
            struct connection *of = come[i].data.ptr;
            if (of->listens)
                admit(of);
            else
                read_from(of);
        }
        stream_on();
    }
}
