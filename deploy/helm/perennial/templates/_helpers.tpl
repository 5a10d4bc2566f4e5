{{- define "perennial.name" -}}
{{- if contains "perennial" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-perennial" (.Release.Name | trunc 40) }}{{ end }}
{{- end }}

{{- define "perennial.selector" -}}
app.kubernetes.io/name: perennial
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "perennial.labels" -}}
{{ include "perennial.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "perennial.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "perennial.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false  # else PERENNIAL_PORT would be tcp://…, after the service
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "perennial.container" -}}
image: {{ include "perennial.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "perennial.secretEnvironment" -}}
- name: {{ .variable }}
  valueFrom: {secretKeyRef: {name: {{ .secret }}, key: {{ .key }}{{ if .optional }}, optional: true{{ end }}}}
{{- end }}

{{/* Nine tenths of segments.copies, in bytes. A pod whose disk is full is evicted, so there is room for what is being written. */}}
{{- define "perennial.copyBytes" -}}
{{- $size := toString .Values.segments.copies }}
{{- $number := regexFind "^[0-9]+([.][0-9]+)?([eE][+-]?[0-9]+)?" $size }}
{{- $units := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 }}
{{- $unit := trimPrefix $number $size }}
{{- if not (and $number (hasKey $units $unit)) }}{{ fail "segments.copies must be a size such as 10Gi" }}{{ end }}
{{- mulf $number (get $units $unit) 0.9 | int64 }}
{{- end }}

{{/* Environment of API and worker. */}}
{{- define "perennial.environment" -}}
- {name: PERENNIAL_METRICS_HOST, value: 0.0.0.0}
- {name: PERENNIAL_SEGMENT_STORE, value: {{ .Values.segments.store | default "/var/lib/perennial/segments" | quote }}}
{{- if .Values.segments.store }}
- {name: PERENNIAL_SEGMENT_COPIES, value: /var/lib/perennial/copies}
{{- if not (hasKey .Values.settings "max_copy_bytes") }}
- {name: PERENNIAL_MAX_COPY_BYTES, value: {{ include "perennial.copyBytes" . | quote }}}
{{- end }}
{{- end }}
{{- range $name, $value := .Values.settings }}
- {name: PERENNIAL_{{ $name | upper }}, value: {{ kindIs "string" $value | ternary $value (toJson $value) | quote }}}  # toJson: 10000000, not 1e+07
{{- end }}
{{ include "perennial.secretEnvironment" (dict "variable" "PERENNIAL_REDIS_URL" "secret" .Values.secret "key" "redis-url") }}
{{ include "perennial.secretEnvironment" (dict "variable" "PERENNIAL_DATABASE_URL" "secret" .Values.secret "key" "database-url") }}
{{- end }}

{{/* The folder of segments, or of copies of them. */}}
{{- define "perennial.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if .Values.segments.store }}
- {name: copies, mountPath: /var/lib/perennial/copies}
{{- else }}
- {name: segments, mountPath: /var/lib/perennial/segments{{ if .readOnly }}, readOnly: true{{ end }}}
{{- end }}
{{- end }}

{{- define "perennial.volumes" -}}
- {name: tmp, emptyDir: {}}
{{- if .Values.segments.store }}
- {name: copies, emptyDir: {sizeLimit: {{ .Values.segments.copies }}}}
{{- else }}
- name: segments
  persistentVolumeClaim: {claimName: {{ .Values.segments.volume.existingClaim | default (printf "%s-segments" (include "perennial.name" .)) }}}
{{- end }}
{{- end }}

{{/* Where a pod may go: with a volume of one node, to that node. */}}
{{- define "perennial.place" -}}
{{- if not (or .Values.segments.store (eq .Values.segments.volume.accessMode "ReadWriteMany")) }}
affinity:
  podAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector: {matchLabels: {perennial/segments: {{ .Release.Name }}}}
{{- else }}
affinity:
  {{- with .part.affinity }}
  {{- toYaml . | nindent 2 }}
  {{- else }}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 1
        podAffinityTerm:
          topologyKey: topology.kubernetes.io/zone
          labelSelector: {matchLabels: {app.kubernetes.io/instance: {{ .Release.Name }}, app.kubernetes.io/component: {{ .component }}}}
  {{- end }}
{{- end }}
{{- with .part.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .part.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}
