package integration

import (
	"net/http"
	"os/exec"
	"strings"
	"testing"
)

// presets has a row for each preset: what the provider's documentation says
// about a submit.
var presets = map[string]struct {
	path     string
	accepted int
	document string // of an acceptance
	job      string // its id in there
	refused  int
	refusal  string
	options  string // that the preset requires
}{
	"infro":         {"/v1/videos", 202, `{"id":"job_1","status":"queued"}`, "job_1", 402, `{"error":{"type":"billing_error","code":"out_of_credits"}}`, ""},
	"intactvoice":   {"/v1/rewrite", 202, `{"id":"job_1","status":"queued"}`, "job_1", 422, `{"error":{"code":"text_too_long"}}`, ""},
	"openai":        {"/v1/responses", 200, `{"id":"resp_1","object":"response","status":"queued"}`, "resp_1", 429, `{"error":{"code":"rate_limit_exceeded"}}`, ""},
	"openai-videos": {"/v1/videos", 200, `{"id":"video_1","object":"video","status":"queued"}`, "video_1", 400, `{"error":{"code":"invalid"}}`, ""},
	"replicate":     {"/v1/predictions", 201, `{"id":"ufawqhfynnddngldkgtslldrkq","status":"starting"}`, "ufawqhfynnddngldkgtslldrkq", 429, `{"detail":"throttled","retry_after":8}`, ""},
	"luma":          {"/dream-machine/v1/generations/video", 201, `{"id":"gen_1","state":"queued"}`, "gen_1", 400, `{"detail":"no credits"}`, ""},
	"runway":        {"/v1/image_to_video", 200, `{"id":"17f20503-6c24-4c16-946b-35dbbce2af2f"}`, "17f20503-6c24-4c16-946b-35dbbce2af2f", 429, `{"error":"limit"}`, ""},
	"fal":           {"/fal-ai/flux", 200, `{"request_id":"req_1","status_url":"https://queue.fal.run/x"}`, "req_1", 422, `{"detail":[]}`, ""},
	"kling":         {"/v1/videos/text2video", 200, `{"code":0,"data":{"task_id":"851"}}`, "851", 200, `{"code":1102,"message":"balance not enough"}`, "scope {http.request.header.X-Team}"},
	"minimax":       {"/v1/video_generation", 200, `{"task_id":"106916112212032","base_resp":{"status_code":0}}`, "106916112212032", 200, `{"task_id":"","base_resp":{"status_code":1008}}`, ""},
	"heygen":        {"/v3/videos", 200, `{"data":{"video_id":"vid_1"}}`, "vid_1", 400, `{"error":{"code":"insufficient_credit"}}`, ""},
	"mux":           {"/video/v1/assets", 201, `{"data":{"id":"asset_1","status":"preparing"}}`, "asset_1", 400, `{"error":{"type":"invalid_parameters"}}`, ""},
	"shotstack":     {"/edit/v1/render", 201, `{"success":true,"response":{"id":"render_1"}}`, "render_1", 400, `{"success":false}`, ""},
	"creatomate":    {"/v1/renders", 202, `[{"id":"render_1"},{"id":"render_2"}]`, "render_1", 402, `{"hint":"credits"}`, ""},
	"elevenlabs":    {"/v1/dubbing", 200, `{"dubbing_id":"dub_1","expected_duration_sec":12.5}`, "dub_1", 422, `{"detail":{"status":"invalid"}}`, ""},
	"assemblyai":    {"/v2/transcript", 200, `{"id":"tr_1","status":"queued"}`, "tr_1", 400, `{"error":"bad url"}`, ""},
}

// Each preset, against a provider that answers as its documentation says: an
// acceptance is stored with the job's id, a refusal frees the key, and a lost
// answer leaves the outcome unknown.
func TestPresets(t *testing.T) {
	t.Parallel()
	listed, err := exec.Command(caddyBinary, "idempotency", "provider").Output()
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(string(listed), "\n"); lines != len(presets) {
		t.Errorf("the command lists %d presets, and the table has %d:\n%s", lines, len(presets), listed)
	}
	for name, preset := range presets {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProvider(t, func(w http.ResponseWriter, r *http.Request, n int, accept func() string) {
				switch r.Header.Get("X-Case") {
				case "refused":
					answerWith(preset.refused, map[string]string{"Content-Type": "application/json"}, preset.refusal)(w, r, n, accept)
				case "lost":
					hangUp("", true)(w, r, n, accept)
				default:
					answerWith(preset.accepted, map[string]string{"Content-Type": "application/json"}, preset.document)(w, r, n, accept)
				}
			})
			g := startGateway(t, p.url, options{idempotency: "provider " + name + "\n" + preset.options})
			submit := func(how string) answer {
				header := http.Header{"X-Case": {how}, "X-Team": {"video"}}
				return g.send(t, request{path: preset.path, key: how, body: `{"prompt":"a cat"}`, header: header})
			}

			first, again := submit("accepted"), submit("accepted")
			p.want(t, 1)
			if first.status != preset.accepted || again.status != preset.accepted || !again.replayed() || again.body != preset.document {
				t.Errorf("an acceptance: %v, then %v", first, again)
			}
			if records := g.list(t, "?state=completed&namespace="+name).Records; len(records) != 1 || records[0].JobID != preset.job {
				t.Errorf("the records are %+v, want one with the job %s", records, preset.job)
			}

			first, again = submit("refused"), submit("refused")
			p.want(t, 3)
			if first.status != preset.refused || again.status != preset.refused || again.body != preset.refusal || again.code() != "" {
				t.Errorf("a refusal: %v, then %v", first, again)
			}

			first, again = submit("lost"), submit("lost")
			p.want(t, 4)
			if first.status != http.StatusBadGateway || again.status != http.StatusConflict || again.code() != "idempotency_outcome_unknown" {
				t.Errorf("a lost answer: %v, then %v", first, again)
			}
		})
	}
}
