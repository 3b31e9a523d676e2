<?php
// Answers questions about PHP itself: one JSON object a line in, one a line out. The first line has PHP's version.
error_reporting(0);
echo json_encode(PHP_VERSION), "\n";
while (($line = fgets(STDIN)) !== false) {
    $ask = json_decode($line, true);
    switch ($ask['what']) {
        case 'strtotime':
            date_default_timezone_set($ask['zone']);
            $answer = strtotime($ask['text'], $ask['now']);
            break;
        case 'empty':
            $body = $ask['body'];
            $answer = empty($body);
            break;
        case 'flag':
            // As the PHP daemon does: `{res.a.b}` becomes a member of the decoded answer, and the flag an assignment.
            $res = json_decode($ask['res'], true);
            $member = fn ($m) => '$' . preg_replace('/\.([^.}]+)/', "['\$1']", $m[1]);
            $code = preg_replace_callback('/\{(res[^}]*)\}/', $member, $ask['flag']);
            try {
                eval("\$ret=$code;");
                $answer = (bool) $ret;
            } catch (\Throwable $e) {
                $answer = 'throws';
            }
            break;
    }
    echo json_encode($answer), "\n";
}
